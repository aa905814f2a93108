def epsilon_limit():
    return 1e-9
