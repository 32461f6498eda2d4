"""SVG as text: elements, attributes and escaping."""

from xml.etree import ElementTree as ET

from braidmq.base.svg import NAMESPACE, element, picture, text


def test_attributes_get_their_svg_names() -> None:
    """An underscore stands for a hyphen or follows a keyword; numbers are short."""
    drawn = element("line", class_="a", text_anchor="end", x1=1.0, y1=1 / 3)

    assert '<line class="a" text-anchor="end" x1="1" y1="0.33"/>' == drawn


def test_text_and_attributes_are_escaped() -> None:
    """No topic name can inject a tag."""
    drawn = text("<b>&", class_='"><script>')

    assert '<text class="&quot;&gt;&lt;script&gt;">&lt;b&gt;&amp;</text>' == drawn


def test_a_picture_describes_itself() -> None:
    """A screen reader finds its title and description."""
    drawn = picture(
        10, 20.5, [element("rect")], name="a", title="x < y", description="d", standalone=True
    )
    found = ET.fromstring(drawn)  # noqa: S314 - our own output

    assert "0 0 10 20.5" == found.attrib["viewBox"]
    assert "a-title a-desc" == found.attrib["aria-labelledby"]
    assert ["title", "desc", "rect"] == [child.tag.split("}")[1] for child in found]
    assert ("x < y", f"{{{NAMESPACE}}}svg") == (found[0].text, found.tag)


def test_an_inline_picture_has_no_namespace() -> None:
    """HTML needs none."""
    drawn = picture(1, 1, [], name="a", title="t", description="d")

    assert "xmlns" not in drawn
