"""Widgets that come and go at little cost: containers that are measured once, and no trace of what is gone."""

from typing import TYPE_CHECKING

from textual._styles_cache import StylesCache
from textual.geometry import Size

if TYPE_CHECKING:
    from textual.widget import Widget as _Widget
else:
    # Textual looks for styles along the first base that is a widget; a mixin must be none.
    _Widget = object


def forget_removed() -> None:
    """Let go of the pictures of widgets that are gone; Textual's cache of backgrounds holds those of a thousand."""
    StylesCache.get_inner_outer.cache_clear()


class Steady(_Widget):
    """Before a container's class: a container whose height follows from its width and its contents alone.

    Textual measures children again whenever their parent's height changes; in a chat that is at
    every addition, for all that was said before. Children must not be as tall as a fraction of
    the parent.
    """

    _measured: tuple[tuple[int, int, int], int] = ((0, 0, 0), 0)

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        """The height, from the last time while neither width nor contents changed."""
        state = (width, self._layout_updates, self._nodes._updates)
        if self._measured[0] != state:
            self._measured = (state, super().get_content_height(Size(width, 0), viewport, width))
        return self._measured[1]
