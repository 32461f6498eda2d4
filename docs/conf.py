"""The documentation as a site; `make docs` builds it into build/docs, warnings are errors."""

from importlib.metadata import version as version_of

project = "BraidMQ"
author = "The BraidMQ authors"
copyright = "The BraidMQ authors"  # noqa: A001 - Sphinx decides the names of its settings
version = release = version_of("braidmq")

extensions = ["myst_parser"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["_static"]

# `--url` is an option and not a dash, in every font.
smartquotes = False
# Anchors as the pages have them where they are read as files: of every heading.
myst_heading_anchors = 4
# Blocks that are only looked at have the label `text`; the others are highlighted.
highlight_language = "text"

html_theme = "furo"
html_title = f"BraidMQ {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_favicon = "../src/braidmq/admin/static/favicon.svg"
# It is read offline, too: nothing is fetched from elsewhere.
html_theme_options = {"source_repository": "", "top_of_page_buttons": []}
html_copy_source = False
html_show_sphinx = False
