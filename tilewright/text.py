"""Words for what is counted, the same wherever tilewright prints."""


def plural(count: int, noun: str) -> str:
    """1 case, 2 cases"""
    return f"{count} {noun}{'s' * (count != 1)}"
