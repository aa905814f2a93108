def shared_name(value):
    return value - 1


class BetaReader:
    """def not_a_function(x) in a docstring."""

    def read(self, path):
        return path.read_text()
