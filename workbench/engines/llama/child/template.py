"""The model's own chat template, or a named fallback."""

from collections.abc import Sequence

import llama_cpp.llama_cpp as llama
from jinja2 import TemplateError
from llama_cpp.llama_chat_format import Jinja2ChatFormatter

from workbench.domain.conversation import Message
from workbench.engines.engine import EngineError

FALLBACK_NAME = "chatml"
FALLBACK = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
FALLBACK_STOPS = ("<|im_end|>", "<|im_start|>")


class ChatTemplate:
    """Turns messages into the text that the model expects."""

    def __init__(self, model: object) -> None:
        vocab = llama.llama_model_get_vocab(model)
        own = llama.llama_model_chat_template(model, None)
        self.is_fallback = not own
        self.name = f"{FALLBACK_NAME} (the model has none)" if self.is_fallback else "the model's own"
        self.stops = FALLBACK_STOPS if self.is_fallback else ()
        self.bos = _token_text(vocab, llama.llama_vocab_bos(vocab))
        try:
            self._format = Jinja2ChatFormatter(
                own.decode("utf-8", "replace") if own else FALLBACK,
                eos_token=_token_text(vocab, llama.llama_vocab_eos(vocab)),
                bos_token=self.bos,
            )
        except Exception as error:  # a stranger's code, which may fail of anything
            raise EngineError(f"the model's chat template cannot be read: {_said(error)}", key="model") from error

    def render(self, messages: Sequence[Message]) -> str:
        """The prompt's text. Raises EngineError where the template refuses the messages."""
        plain = [{"role": message.role, "content": message.content} for message in messages]
        try:
            return str(self._format(messages=plain).prompt)  # type: ignore[arg-type]
        except Exception as error:
            raise EngineError(f"the model's chat template refuses this conversation: {_said(error)}") from error


def _said(error: Exception) -> str:
    return str(error) if isinstance(error, TemplateError) else f"{type(error).__name__}: {error}"


def _token_text(vocab: object, token: int) -> str:
    text = llama.llama_vocab_get_text(vocab, token) if token >= 0 else b""
    return (text or b"").decode("utf-8", "replace")
