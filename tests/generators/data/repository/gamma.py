TEXT = """
def inside_a_string(x):
    pass
"""


async def gamma_fetch(address):
    return "<|im_start|>" + address
