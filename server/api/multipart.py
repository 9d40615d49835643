"""A form with a file in it, taken apart while it arrives: nothing of the file is kept."""

import sys

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.datastructures import Headers

from server.api.errors import UnsupportedMediaType
from server.api.validation import unknown_field
from server.errors import InvalidRequest

FILE_FIELD = "file"
_MAX_FIELD_BYTES = 256
_MAX_FILENAME_CHARACTERS = 255
_MAX_HEADER_BYTES = 4096
_MAX_HEADERS = 8
_DEFAULT_FILENAME = "upload"


class FormReader:
    """Splits a multipart/form-data body into a few short fields and the bytes of one file."""

    def __init__(self, headers: Headers, *, fields: frozenset[str]) -> None:
        """Prepare.

        Args:
            headers: of the request; they say how the parts are told from each other.
            fields: names of the fields that there may be beside the file.

        Raises:
            UnsupportedMediaType: the body is no form.
        """
        self.fields: dict[str, str] = {}
        """The fields so far."""
        self.filename: str | None = None
        """What the client calls the file; None as long as there is none."""
        self.is_complete = False
        """Whether the form has ended."""
        self._known = fields
        self._name = ""
        self._value = bytearray()
        self._header: tuple[bytes, bytes] = (b"", b"")
        self._num_headers = 0
        self._disposition = b""
        self._file_data: list[bytes] = []
        self._parser = MultipartParser(
            _boundary(headers),
            {
                "on_part_begin": self._on_part_begin,
                "on_part_data": self._on_part_data,
                "on_part_end": self._on_part_end,
                "on_header_field": self._on_header_field,
                "on_header_value": self._on_header_value,
                "on_header_end": self._on_header_end,
                "on_headers_finished": self._on_headers_finished,
                "on_end": self._on_end,
            },
            # Above ours, which say what is wrong; a piece of the body may have many headers.
            max_header_count=sys.maxsize,
            max_header_size=sys.maxsize,
        )

    def feed(self, chunk: bytes) -> bytes:
        """Returns what of the file is in the next piece of the body.

        Raises:
            InvalidRequest: the body is malformed, or has a field that is not known.
        """
        self._file_data = []
        try:
            self._parser.write(chunk)
        except FormParserError as error:
            raise _malformed() from error
        return b"".join(self._file_data)

    def finish(self) -> None:
        """Check that the body was whole. Raises InvalidRequest if not, or without a file."""
        if not self.is_complete:
            raise _malformed()
        if self.filename is None:
            raise InvalidRequest(
                "file is missing; it must be the file to upload.",
                param=FILE_FIELD,
                code="missing_field",
            )

    def _on_part_begin(self) -> None:
        self._disposition = b""
        self._num_headers = 0
        self._value.clear()

    def _on_header_field(self, data: bytes, start: int, end: int) -> None:
        name, value = self._header
        self._header = (name + data[start:end], value)
        self._check_header()

    def _on_header_value(self, data: bytes, start: int, end: int) -> None:
        name, value = self._header
        self._header = (name, value + data[start:end])
        self._check_header()

    def _on_header_end(self) -> None:
        name, value = self._header
        if name.lower() == b"content-disposition":
            self._disposition = value
        self._header = (b"", b"")
        self._num_headers += 1
        if self._num_headers > _MAX_HEADERS:
            raise InvalidRequest(
                f"A part of the form has more than {_MAX_HEADERS} headers. Send fewer.",
                code="invalid_multipart",
            )

    def _check_header(self) -> None:
        name, value = self._header
        if len(name) + len(value) <= _MAX_HEADER_BYTES:
            return
        raise InvalidRequest(
            f"A part of the form has a header of more than {_MAX_HEADER_BYTES} bytes. Give the "
            "file a shorter name.",
            param=FILE_FIELD,
            code="invalid_multipart",
        )

    def _on_headers_finished(self) -> None:
        _, options = parse_options_header(self._disposition)
        self._name = options.get(b"name", b"").decode("utf-8", "replace")
        if self._name == FILE_FIELD and self.filename is None:
            self.filename = display_name(options.get(b"filename", b""))
        elif self._name in self.fields or self._name == FILE_FIELD:
            raise InvalidRequest(f"{self._name} comes twice; send it once.", param=self._name)
        elif self._name not in self._known:
            raise unknown_field(self._name, {*self._known, FILE_FIELD}, self._name)

    def _on_part_data(self, data: bytes, start: int, end: int) -> None:
        if self._name == FILE_FIELD:
            self._file_data.append(data[start:end])
            return
        if len(self._value) + end - start > _MAX_FIELD_BYTES:
            raise InvalidRequest(
                f"{self._name} has more than {_MAX_FIELD_BYTES} bytes. Send a shorter one.",
                param=self._name,
            )
        self._value += data[start:end]

    def _on_part_end(self) -> None:
        if self._name != FILE_FIELD:
            self.fields[self._name] = self._value.decode("utf-8", "replace")

    def _on_end(self) -> None:
        self.is_complete = True


def display_name(filename: bytes) -> str:
    """Returns a client's name for a file, fit to be shown; never to be used as a path."""
    text = filename.decode("utf-8", "replace")
    printable = "".join(char for char in text if char.isprintable())
    return printable[-_MAX_FILENAME_CHARACTERS:] or _DEFAULT_FILENAME


def _boundary(headers: Headers) -> bytes:
    kind, options = parse_options_header(headers.get("content-type", ""))
    boundary = options.get(b"boundary", b"")
    if kind != b"multipart/form-data" or not 1 <= len(boundary) <= 70:
        raise UnsupportedMediaType(
            "The body must be a form with the file in it, with Content-Type: multipart/form-data "
            "and its boundary."
        )
    if headers.get("content-encoding", "identity").strip().lower() != "identity":
        raise UnsupportedMediaType("The body must not be compressed; leave Content-Encoding out.")
    return boundary


def _malformed() -> InvalidRequest:
    return InvalidRequest(
        "The body is not a whole multipart form. Send one as curl -F does.",
        code="invalid_multipart",
    )
