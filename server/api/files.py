"""``/v1/files``: upload a video once and refer to it in chats, as in OpenAI's files API."""

import asyncio
from collections.abc import Mapping

from fastapi import APIRouter, Request
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from server.api.documentation import FILE_RESPONSES, FILE_UPLOAD, PURPOSES
from server.api.download import FileDownload, requested_span
from server.api.errors import JsonResponse
from server.api.middleware import FILES_PATH, FORM_BYTES, declared_bytes
from server.api.multipart import FormReader
from server.api.state import files_of, metrics_of, owner_of, require_running, settings_of
from server.api.validation import shown, unknown_field
from server.engine.base import JsonObject
from server.errors import InvalidRequest
from server.files.store import StoredFile
from server.files.upload import Upload
from server.settings import FileSettings

router = APIRouter(responses=FILE_RESPONSES)

_ANCHOR, _SECONDS = "expires_after[anchor]", "expires_after[seconds]"
_UPLOAD_FIELDS = frozenset({"purpose", _ANCHOR, _SECONDS})
_LIST_PARAMETERS = frozenset({"limit", "after", "order", "purpose"})
MAX_LISTED = 10_000
"""Most files in one page of the list."""


@router.post(FILES_PATH, response_class=Response, openapi_extra={"requestBody": FILE_UPLOAD})
async def upload_file(request: Request) -> Response:
    """Stores the file in a form, and returns the file object."""
    require_running(request)
    store, settings = files_of(request), settings_of(request).files
    form = FormReader(request.headers, fields=_UPLOAD_FIELDS)
    expected_bytes = max(0, declared_bytes(request.headers) - FORM_BYTES)
    with metrics_of(request).files.upload(disconnect=ClientDisconnect):
        async with store.upload(owner_of(request), expected_bytes=expected_bytes) as upload:
            await _receive(request, form, upload, settings.upload_timeout_seconds)
            file = await store.keep(
                upload,
                filename=form.filename or "",
                purpose=_purpose(form.fields),
                expires_after_seconds=_expiry(form.fields, settings),
            )
    return JsonResponse(_file_object(file))


@router.head(FILES_PATH, include_in_schema=False)
@router.get(FILES_PATH, response_class=Response)
async def list_files(request: Request) -> Response:
    """Returns the client's files, page by page."""
    query = request.query_params
    for name in query:
        if name not in _LIST_PARAMETERS:
            raise unknown_field(name, _LIST_PARAMETERS, name)
    limit, newest_first = _limit(query), _is_newest_first(query)
    found = files_of(request).files(owner_of(request))
    if newest_first:
        found.reverse()
    found = _after(found, query.get("after"))
    if "purpose" in query:
        purpose = _purpose(query)
        found = [file for file in found if file.purpose == purpose]
    page = [_file_object(file) for file in found[:limit]]
    return JsonResponse(
        {
            "object": "list",
            "data": page,
            "first_id": page[0]["id"] if page else None,
            "last_id": page[-1]["id"] if page else None,
            "has_more": len(found) > limit,
        }
    )


@router.head(FILES_PATH + "/{file_id}", include_in_schema=False)
@router.get(FILES_PATH + "/{file_id}", response_class=Response)
async def get_file(request: Request, file_id: str) -> Response:
    """Returns the file object."""
    return JsonResponse(_file_object(_found(request, file_id)))


@router.delete(FILES_PATH + "/{file_id}", response_class=Response)
async def delete_file(request: Request, file_id: str) -> Response:
    """Deletes a file. Chats and downloads that have begun go on with it."""
    await files_of(request).delete(file_id, owner_of(request), param="file_id")
    return JsonResponse({"id": file_id, "object": "file", "deleted": True})


@router.head(FILES_PATH + "/{file_id}/content", include_in_schema=False)
@router.get(FILES_PATH + "/{file_id}/content", response_class=Response)
async def download_file(request: Request, file_id: str) -> Response:
    """Returns the bytes of a file, or those that a Range header asks for."""
    found = _found(request, file_id)
    # If-Range asks for a part only of a version that has a name; files here have none.
    header = None if "if-range" in request.headers else request.headers.get("range")
    span = requested_span(header, found.num_bytes)
    opened = await files_of(request).open(found)
    return FileDownload(opened, filename=found.filename, num_bytes=found.num_bytes, span=span)


async def _receive(
    request: Request, form: FormReader, upload: Upload, timeout_seconds: float
) -> None:
    try:
        async with asyncio.timeout(timeout_seconds):
            async for chunk in request.stream():
                await upload.write(form.feed(chunk))
    except TimeoutError as error:
        raise InvalidRequest(
            f"The file did not arrive within {timeout_seconds:g} s. Send a smaller one, or over a "
            "faster line.",
            param="file",
            code="upload_too_slow",
        ) from error
    form.finish()


def _found(request: Request, file_id: str) -> StoredFile:
    return files_of(request).get(file_id, owner_of(request), param="file_id")


def _file_object(file: StoredFile) -> JsonObject:
    return {
        "id": file.id,
        "object": "file",
        "bytes": file.num_bytes,
        "created_at": file.created_at,
        "expires_at": file.expires_at,
        "filename": file.filename,
        "purpose": file.purpose,
        "status": "processed",
    }


def _purpose(fields: Mapping[str, str]) -> str:
    if "purpose" not in fields:
        raise _missing("purpose", " or ".join(PURPOSES))
    if fields["purpose"] not in PURPOSES:
        raise InvalidRequest(
            f"purpose is {shown(fields['purpose'])}; it must be {' or '.join(PURPOSES)}.",
            param="purpose",
        )
    return fields["purpose"]


def _expiry(fields: Mapping[str, str], settings: FileSettings) -> int | None:
    """Returns for how many seconds the client wants the file kept, None if it does not say."""
    if _ANCHOR not in fields and _SECONDS not in fields:
        return None
    if fields.get(_ANCHOR) != "created_at":
        raise InvalidRequest(f"{_ANCHOR} must be created_at.", param=_ANCHOR)
    seconds = _integer(fields.get(_SECONDS, ""), settings.max_expiry_seconds)
    if seconds is None:
        raise InvalidRequest(
            f"{_SECONDS} must be an integer from 1 to {settings.max_expiry_seconds}.",
            param=_SECONDS,
        )
    return seconds


def _limit(query: Mapping[str, str]) -> int:
    limit = _integer(query.get("limit", str(MAX_LISTED)), MAX_LISTED)
    if limit is None:
        raise InvalidRequest(f"limit must be an integer from 1 to {MAX_LISTED}.", param="limit")
    return limit


def _is_newest_first(query: Mapping[str, str]) -> bool:
    order = query.get("order", "desc")
    if order not in ("asc", "desc"):
        raise InvalidRequest(f"order is {shown(order)}; it must be asc or desc.", param="order")
    return order == "desc"


def _after(files: list[StoredFile], last_id: str | None) -> list[StoredFile]:
    """Returns the files that follow the last one of the page before."""
    if last_id is None:
        return files
    for index, file in enumerate(files):
        if file.id == last_id:
            return files[index + 1 :]
    raise InvalidRequest(
        f"after is {shown(last_id)}, which is no file of yours. Start again without it.",
        param="after",
    )


def _integer(text: str, most: int) -> int | None:
    """Returns an integer from 1 to ``most``, None if the text is something else."""
    if not (text.isascii() and text.isdecimal() and len(text) < 12):
        return None
    return int(text) if 1 <= int(text) <= most else None


def _missing(field: str, wanted: str) -> InvalidRequest:
    return InvalidRequest(
        f"{field} is missing; it must be {wanted}.", param=field, code="missing_field"
    )
