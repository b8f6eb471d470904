"""What every mod asks of a message."""

from __future__ import annotations

from flwr.app import Message


def is_training(message: Message) -> bool:
    """Whether a message asks a node to train."""
    return message.has_content() and message.metadata.message_type.startswith("train")


def round_of(message: Message, config: str) -> int:
    """The server's count of rounds."""
    return int(str(message.content.config_records[config]["server-round"]))
