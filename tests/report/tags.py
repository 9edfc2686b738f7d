"""HTML as a list of its tags."""

from html.parser import HTMLParser


class Tags(HTMLParser):
    """Every tag with its attributes, and the text outside of scripts and styles."""

    def __init__(self, content):
        super().__init__()
        self.tags, self.words, self._inside = [], [], None
        self.feed(content)

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        self._inside = tag

    def handle_data(self, data):
        if self._inside not in ("script", "style"):
            self.words.append(data)

    def handle_endtag(self, tag):
        self._inside = None

    def named(self, name):
        return [attributes for tag, attributes in self.tags if tag == name]
