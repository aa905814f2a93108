"""Alpha."""


def shared_name(value):
    return value + 1


def alpha_total(values):
    """Sum.

    >>> alpha_total([1])
    """
    return sum(values)
