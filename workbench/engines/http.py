"""HTTP to a server: one call at a time, which can be cancelled, is patient as told, and says what went wrong."""

import asyncio
import contextlib
import json
import socket
import ssl
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar
from urllib.parse import urlsplit

import httpx

from workbench.domain.layout import Timeouts
from workbench.domain.servers import is_here
from workbench.domain.text import flat, visible
from workbench.engines.engine import EngineError

T = TypeVar("T")
LONGEST_BODY = 64 << 20
LONGEST_ERROR = 1 << 20
"""What is read of the text of an error; the rest is cut off."""
ERROR_PATIENCE_S = 5.0
"""How long the text of an error is waited for; its status is known already."""
STEPS = 10
LAST_LOOK_S = 0.02
SHOWN_CHARACTERS = 300
LARGEST_FIGURE = 2.0**62


class Cancelled(Exception):
    """The call was cancelled."""


class ServerError(EngineError):
    """The server answered with an error: its status, and its own words if it gave any."""

    def __init__(self, reason: str, *, status: int = 0, said: str = "", body: Any = None) -> None:
        super().__init__(reason)
        self.status = status
        self.said = said
        self.body = body


class Http:
    """Calls to the server at `url`. `key` goes with each as a bearer token, and into no message.

    Each call has a connection of its own: one that was kept open may have died unseen. No
    redirect is followed, so that the key goes nowhere else. All raise EngineError and Cancelled.
    """

    def __init__(self, url: str, timeouts: Timeouts, key: str | None = None) -> None:
        self.url = url
        self.timeouts = timeouts
        self.key = key
        self._calling = threading.Lock()
        self._state = threading.Lock()
        self._task: tuple[asyncio.AbstractEventLoop, asyncio.Task[Any]] | None = None
        self._tls: ssl.SSLContext | None = None

    def ask(self, method: str, path: str, body: Any = None, *, patience_s: float | None = None) -> Any:
        """The JSON of a whole answer, waited for `patience_s`, or else as long as for a first token."""
        return self._run(lambda: self._ask(method, path, body, patience_s or self.timeouts.first_token_s))

    def stream(self, path: str, body: Any, take: Callable[[bytes, str], bool | None]) -> None:
        """POST, and hand each read to `take` with the content type.

        It tells whether text has begun to come, None where the reply is over.
        """
        self._run(lambda: self._stream(path, body, take))

    def pause(self, seconds: float) -> None:
        """Wait; a cancel ends it."""
        self._run(lambda: asyncio.sleep(seconds))

    def cancel(self) -> None:
        """Stop the running call; from any thread. A call that has not begun is not stopped."""
        with self._state:
            if self._task is not None:
                loop, task = self._task
                loop.call_soon_threadsafe(task.cancel)

    # ── one call ──────────────────────────────────────────────────────────────────────────
    def _run(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """In this thread; in another where this one has a loop of its own that runs, such as a screen's at its end."""
        if asyncio._get_running_loop() is None:
            return self._drive(work)
        with ThreadPoolExecutor(1) as beside:
            return beside.submit(self._drive, work).result()

    def _drive(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        with self._calling:
            loop = asyncio.new_event_loop()
            task = loop.create_task(work())
            with self._state:
                self._task = loop, task
            try:
                return loop.run_until_complete(task)
            except asyncio.CancelledError:
                raise Cancelled from None
            finally:
                with self._state:
                    self._task = None
                loop.run_until_complete(loop.shutdown_asyncgens())
                # A name that takes long to look up is not waited for: it must not hold up a cancel.
                loop.close()

    async def _ask(self, method: str, path: str, body: Any, patience_s: float) -> Any:
        async with self._answer(method, path, body, patience_s) as response:
            async with self._patient(patience_s, self._silent(patience_s)):
                content = await _read(response)
            return self._json(response, content)

    async def _stream(self, path: str, body: Any, take: Callable[[bytes, str], bool | None]) -> None:
        patience_s = self.timeouts.first_token_s
        async with self._answer("POST", path, body, patience_s) as response:
            kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
            if kind == "text/html":
                raise ServerError(f"{self.url} answered with a web page; is that the address of its API?")
            reads = response.aiter_raw().__aiter__()
            begun = False
            while True:
                patience_s = self.timeouts.silence_s if begun else self.timeouts.first_token_s
                async with self._patient(patience_s, self._silent(patience_s)):
                    read = await anext(reads, None)
                if read is None:
                    return
                told = take(read, kind)
                if told is None:
                    return
                begun = told or begun

    @contextlib.asynccontextmanager
    async def _answer(self, method: str, path: str, body: Any, patience_s: float) -> AsyncIterator[httpx.Response]:
        """The response once its head is there; every failure in its life is put into words."""
        try:
            async with self._client() as client:
                request = self._request(client, method, path, body)
                async with self._patient(patience_s, self._silent(patience_s)):
                    response = await client.send(request, stream=True)
                try:
                    if response.status_code != 200:
                        await self._refused(response)
                    yield response
                finally:
                    await response.aclose()
        except (httpx.HTTPError, OSError) as error:
            raise ServerError(self._why(error)) from None

    def _client(self) -> httpx.AsyncClient:
        wait = self.timeouts
        if self._tls is None and self.url.startswith("https:"):
            self._tls = httpx.create_ssl_context()
        try:
            return httpx.AsyncClient(
                verify=self._tls or True if self.url.startswith("https:") else False,
                # A proxy of the environment has no way to this machine's loopback.
                trust_env=not is_here(self.url),
                timeout=httpx.Timeout(None, connect=wait.connect_s, write=wait.silence_s),
            )
        except (httpx.InvalidURL, ValueError, ImportError) as error:
            reason = f"the proxy that the environment names cannot be used: {self.clean(str(error))}"
            raise ServerError(reason) from None

    def _request(self, client: httpx.AsyncClient, method: str, path: str, body: Any) -> httpx.Request:
        try:
            url = httpx.URL(self.url + path)
            _ = url.host  # decoded only when it is looked at, which may fail
        except (httpx.InvalidURL, UnicodeError) as error:
            raise ServerError(f"{self.url} is no address: {self.clean(str(error))}") from None
        return client.build_request(method, url, json=body, headers=self._headers())

    def _headers(self) -> dict[str, str]:
        # Compression would gather small pieces into large ones.
        headers = {"Accept-Encoding": "identity"}
        if self.key is not None:
            headers["Authorization"] = f"Bearer {self.key}"
        return headers

    @contextlib.asynccontextmanager
    async def _patient(self, seconds: float, reason: str) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(None) as limit:
                with _ticking(seconds, limit):
                    yield
        except TimeoutError:
            raise ServerError(reason) from None

    def _silent(self, seconds: float) -> str:
        return f"{self.url} said nothing for {seconds:g} s (`timeouts` of the layout sets how long it is waited for)"

    # ── what went wrong ───────────────────────────────────────────────────────────────────
    async def _refused(self, response: httpx.Response) -> None:
        """Raise for a status other than 200."""
        status = response.status_code
        content = bytearray()
        with contextlib.suppress(TimeoutError, httpx.HTTPError):
            async with asyncio.timeout(ERROR_PATIENCE_S):
                async for read in response.aiter_raw():
                    content += read
                    if len(content) >= LONGEST_ERROR:
                        break
        body, said = None, ""
        with contextlib.suppress(ValueError, RecursionError):
            body = json.loads(content)
            said = self.clean(error_text(body))
        if 300 <= status < 400:
            to = self.clean(response.headers.get("location", "another address"))
            reason = f"{self.url} redirects to {to}; no redirect is followed: write the right url"
            raise ServerError(reason, status=status)
        words = {
            401: "refused the key; is it the right one? (api_key_env names the variable that holds it)",
            403: "refuses this request",
            404: "knows nothing by that name",
            407: "cannot be reached: a proxy on the way asks for a password",
            429: "has had too many requests; wait a little",
            500: "failed",
            501: "cannot do that",
            502: "cannot be reached: a proxy on the way gets no answer",
            503: "is busy or still starting; wait a little",
            504: "cannot be reached: a proxy on the way waited too long",
        }.get(status, "refuses this request" if status < 500 else "failed")
        told = f": {said}" if said else ""
        raise ServerError(f"{self.url} {words} (HTTP {status}){told}", status=status, said=said, body=body)

    def _json(self, response: httpx.Response, content: bytes) -> Any:
        try:
            return parsed(content)
        except (ValueError, RecursionError):
            what = "a web page" if "html" in response.headers.get("content-type", "") else "something that is no JSON"
            raise ServerError(f"{self.url} answered with {what}; is that the address of its API?") from None

    def clean(self, text: str) -> str:
        """A server's words, fit for a terminal: one line, not too long, without the key."""
        if self.key:
            text = text.replace(self.key, "…")
        text = visible(flat(text))
        return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}…"

    def _why(self, error: Exception) -> str:
        causes = list(_causes(error))
        for cause in causes:
            if isinstance(cause, ssl.SSLCertVerificationError):
                return (f"the certificate of {self.url} is not to be trusted: {self.clean(cause.verify_message)}; for "
                        "an authority of your own set SSL_CERT_FILE")
            if isinstance(cause, ssl.SSLError):
                return f"{self.url} speaks no TLS, or none that is safe ({cause.reason}); is it http:// there?"
            if isinstance(cause, socket.gaierror):
                return f"there is no host {urlsplit(self.url).hostname}: {cause.strerror}"
            if isinstance(cause, ConnectionRefusedError):
                return f"nothing answers at {self.url} (connection refused); is the server running?"
        match error:
            case httpx.ConnectTimeout():
                return f"{self.url} did not answer within {self.timeouts.connect_s:g} s; is the address right?"
            case httpx.WriteTimeout():
                return self._silent(self.timeouts.silence_s)
            case httpx.ProxyError():
                return f"the proxy on the way to {self.url} refuses: {self.clean(str(error))}"
            case httpx.ConnectError():
                return f"{self.url} cannot be reached: {self.clean(str(causes[-1]))}"
            case httpx.RemoteProtocolError() if "incomplete" in str(error) or "peer closed" in str(error):
                return f"{self.url} hung up in the middle"
            case httpx.RemoteProtocolError() if "without sending" in str(error):
                return f"{self.url} hung up without an answer"
            case httpx.RemoteProtocolError() | httpx.DecodingError():
                return f"{self.url} does not speak HTTP as it should: {self.clean(str(error))}"
            case httpx.ReadError() | httpx.WriteError() | ConnectionError():
                return f"the connection to {self.url} broke off"
        return f"{self.url} cannot be reached: {self.clean(str(error)) or type(error).__name__}"


@contextlib.contextmanager
def _ticking(seconds: float, limit: asyncio.Timeout) -> Iterator[None]:
    """Let `limit` expire after `seconds` in which this process ran.

    The time is counted in steps, each as long as it was meant to be: one in which the process was
    stopped is no longer. A short one follows in which what had come meanwhile is read.
    """
    loop = asyncio.get_running_loop()

    async def count() -> None:
        for _ in range(STEPS):
            await asyncio.sleep(seconds / STEPS)
        await asyncio.sleep(LAST_LOOK_S)
        limit.reschedule(loop.time())

    counting = loop.create_task(count())
    try:
        yield
    finally:
        counting.cancel()


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """An error and all that led to it."""
    while error is not None:
        yield error
        if isinstance(error, BaseExceptionGroup):
            for each in error.exceptions:
                yield from _causes(each)
        error = error.__cause__ or error.__context__


async def _read(response: httpx.Response) -> bytes:
    content = bytearray()
    async for read in response.aiter_raw():
        content += read
        if len(content) > LONGEST_BODY:
            raise ServerError(f"an answer is longer than {LONGEST_BODY >> 20} MiB")
    return bytes(content)


def parsed(content: bytes) -> Any:
    """The JSON of a whole answer, half a character in it as `?`. Raises ValueError, RecursionError."""
    text = content.decode("utf-8-sig", "replace")
    value = json.loads(text)
    if "\\u" not in text:
        return value
    return json.loads(json.dumps(value, ensure_ascii=False).encode("utf-8", "replace"))


def error_text(body: Any, depth: int = 4) -> str:
    """What an error's JSON says: `{"error": "…"}`, `{"error": {"message": "…"}}`, `{"detail": …}` and the like."""
    for name in ("error", "detail", "message"):
        if isinstance(body, dict) and body.get(name):
            found = body[name]
            inner = error_text(found, depth - 1) if depth else ""
            return inner or (found if isinstance(found, str) else json.dumps(found)[:SHOWN_CHARACTERS])
    return body if isinstance(body, str) else ""


def figure(row: Mapping[str, Any], name: str) -> float:
    """A figure above 0 in an answer, 0 where there is none that could be true."""
    value = row.get(name)
    if not isinstance(value, int | float) or isinstance(value, bool):
        return 0.0
    return float(value) if 0 < value < LARGEST_FIGURE else 0.0


def whole(row: Mapping[str, Any], name: str) -> int:
    """The same as a whole number."""
    return int(figure(row, name))
