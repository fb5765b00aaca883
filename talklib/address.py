"""The repository's public address, in one place. Empty until it has one; badges and the Colab cell read it."""

REPOSITORY = ""
"""For example "https://github.com/OWNER/NAME"."""


def badge(notebook: str) -> str:
    """An "Open in Colab" badge for a notebook as Markdown; empty while there is no address."""
    if not REPOSITORY:
        return ""
    path = REPOSITORY.removeprefix("https://github.com/")
    url = f"https://colab.research.google.com/github/{path}/blob/main/notebooks/{notebook}.ipynb"
    return f"[![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)]({url})"
