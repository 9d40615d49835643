"""Which URLs are fetched: plain http(s) ones that every parser reads alike."""

import re
from dataclasses import dataclass
from typing import Self
from urllib.parse import quote, urljoin, urlsplit

import httpcore

from server.media.hosts import HostList
from server.media.webfaults import MalformedURL, Unreachable

_MAX_URL_CHARACTERS = 2048
_PORTS = {"http": 80, "https": 443}
_FORBIDDEN_CHARACTERS = re.compile(r"[\x00-\x20\x7f-\x9f\\]")
_PATH_CHARACTERS = "/%:@!$&'()*+,;=~-._"


@dataclass(frozen=True, slots=True)
class Rules:
    """What a URL may be, by the settings."""

    any_port: bool
    hosts: HostList


@dataclass(frozen=True, slots=True)
class Target:
    """A URL that keeps to the rules, in the parts that go on the wire."""

    text: str
    scheme: str
    host: str
    port: int
    path: str

    @classmethod
    def parse(cls, url: str, rules: Rules) -> Self:
        """Returns what ``url`` means; raises ``MalformedURL`` if it breaks a rule."""
        if len(url) > _MAX_URL_CHARACTERS:
            raise MalformedURL(f"it is longer than {_MAX_URL_CHARACTERS} characters")
        if _FORBIDDEN_CHARACTERS.search(url):
            raise MalformedURL("it has a space, a control character or a backslash")
        try:
            parts = urlsplit(url)
            port = parts.port
            host = (parts.hostname or "").encode("idna").decode("ascii")
        except ValueError as error:  # UnicodeError is one
            raise MalformedURL("its host or port is not valid") from error
        if parts.scheme not in _PORTS:
            raise MalformedURL("its scheme is neither http nor https")
        if "@" in parts.netloc:
            raise MalformedURL("it carries a user name or password")
        if not host:
            raise MalformedURL("it has no host")
        if port is None:
            port = _PORTS[parts.scheme]
        if not rules.any_port and port not in _PORTS.values():
            raise MalformedURL("its port is neither 80 nor 443")
        if not rules.hosts.allows(host):
            raise MalformedURL("its host is none that this server fetches from")
        path = quote(parts.path or "/", safe=_PATH_CHARACTERS)
        if parts.query:
            path += "?" + quote(parts.query, safe=_PATH_CHARACTERS + "?[]")
        return cls(url, parts.scheme, host, port, path)

    def redirected(self, location: str, rules: Rules) -> Self:
        """Returns the target of a redirect found here."""
        try:
            target = type(self).parse(urljoin(self.text, location), rules)
        except (MalformedURL, ValueError) as error:
            raise Unreachable("redirect to a forbidden URL") from error
        if self.scheme == "https" and target.scheme == "http":
            raise Unreachable("redirect from https to http")
        return target

    @property
    def identity(self) -> bytes:
        """What is asked of whom, in bytes."""
        return f"{self.scheme}://{self.host}:{self.port}{self.path}".encode()

    def to_httpcore(self) -> httpcore.URL:
        """Returns the same for ``httpcore``."""
        return httpcore.URL(
            scheme=self.scheme.encode(),
            host=self.host.encode(),
            port=self.port,
            target=self.path.encode(),
        )
