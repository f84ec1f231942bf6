"""Parts of the content of a message: text, and references to images, sound and video."""

from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

MEDIA_KINDS: Final = ("image_url", "input_audio", "audio_url", "video_url")
"""Kinds of parts other than text that are supported, as in vLLM 0.32; the model's render tier reads them."""

OTHER_KINDS: Final = frozenset(
    {
        "audio_embeds", "document", "file", "image", "image_embeds", "image_pil", "input_file", "input_image",
        "prompt_embeds", "video_embeds",
    }
)  # fmt: skip
"""Kinds that are not supported, of OpenAI, Anthropic and vLLM 0.32 (`MM_PARSER_MAP`)."""

ADDRESS_CHARACTERS_MAX: Final = 8192
"""Longest address that is not a `data:` URL."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class _Part(_Strict):
    prompt_cache_breakpoint: dict[str, Any] | None = None  # Accepted, not used: as `cache_control`
    cache_control: dict[str, Any] | None = None  # Accepted, not used: equal beginnings are found without it


class TextPart(_Part):
    """A text."""

    type: Literal["text"]  # Kind of part
    text: str  # The text


class MediaAddress(_Strict):
    """Where an image, sound or video is."""

    # `data:` URL with base64; or an `http:` or `https:` one, which the gateway fetches.
    url: Annotated[str, Field(min_length=1)]
    # Accepted, not used: the model's processor decides
    detail: Literal["auto", "low", "high", "original"] | None = None


class AudioData(_Strict):
    """Sound as data."""

    data: Annotated[str, Field(min_length=1)]  # The sound, in base64
    format: Annotated[
        str, Field(min_length=1, max_length=20, pattern="^[a-z0-9]+$")
    ]  # Such as `wav` or `mp3`


class ImagePart(_Part):
    """An image; the model's render tier reads it."""

    type: Literal["image_url"]  # Kind of part
    image_url: MediaAddress  # The image


class AudioUrlPart(_Part):
    """Sound by its address; the model's render tier reads it."""

    type: Literal["audio_url"]  # Kind of part
    audio_url: MediaAddress  # The sound


class VideoPart(_Part):
    """A video; the model's render tier reads it."""

    type: Literal["video_url"]  # Kind of part
    video_url: MediaAddress  # The video


class InputAudioPart(_Part):
    """Sound as data; the model's render tier reads it."""

    type: Literal["input_audio"]  # Kind of part
    input_audio: AudioData  # The sound


PART_FIELDS: Final = {
    "text": frozenset(TextPart.model_fields),
    "image_url": frozenset(ImagePart.model_fields),
    "audio_url": frozenset(AudioUrlPart.model_fields),
    "video_url": frozenset(VideoPart.model_fields),
    "input_audio": frozenset(InputAudioPart.model_fields),
}
"""Fields of parts, by their types."""

MediaPart = ImagePart | AudioUrlPart | VideoPart | InputAudioPart
ContentPart = Annotated[
    TextPart | ImagePart | AudioUrlPart | VideoPart | InputAudioPart, Field(discriminator="type")
]
