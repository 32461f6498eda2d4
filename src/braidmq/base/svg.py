"""SVG as text: the elements of which reports and plots are drawn.

Such a picture loads nothing and runs nothing, so that it can be mailed. Text and attributes are
escaped here, once: topic names come from other users. Callers decide what a chart looks like.
"""

import html
from collections.abc import Iterable
from typing import Final

NAMESPACE: Final = "http://www.w3.org/2000/svg"


def element(tag: str, content: str = "", /, **attributes: float | str) -> str:
    """Return one element around *content*, which is markup already.

    Python's keywords and hyphens are written with an underscore: `class_`, `text_anchor`.
    """
    named = "".join(
        f' {name.rstrip("_").replace("_", "-")}="{_value(value)}"'
        for name, value in attributes.items()
    )
    return f"<{tag}{named}>{content}</{tag}>" if content else f"<{tag}{named}/>"


def text(content: str, /, **attributes: float | str) -> str:
    """Return *content* as text, escaped."""
    return element("text", html.escape(content), **attributes)


def picture(
    width: float,
    height: float,
    drawn: Iterable[str],
    *,
    name: str,
    title: str,
    description: str,
    standalone: bool = False,
) -> str:
    """Return a picture of elements; *title* and *description* tell a screen reader about it.

    Ids are derived from *name*, which must be unique on its page. A picture in a file of its
    own is *standalone*.
    """
    ids = f"{name}-title", f"{name}-desc"
    described = [
        element("title", html.escape(title), id=ids[0]),
        element("desc", html.escape(description), id=ids[1]),
    ]
    namespace = {"xmlns": NAMESPACE} if standalone else {}
    return element(
        "svg",
        "".join([*described, *drawn]),
        **namespace,
        role="img",
        viewBox=f"0 0 {width:g} {height:g}",
        aria_labelledby=" ".join(ids),
    )


def _value(value: float | str) -> str:
    if isinstance(value, str):
        return html.escape(value)
    return f"{round(value, 2):g}"  # a hundredth of a unit is finer than any screen
