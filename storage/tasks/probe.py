"""Does a task of Spark see the lake that the driver sees? Asked at the start, on a cluster."""

from __future__ import annotations

import socket
import uuid

from storage.files.location import LakeLocation


def answer_probe(asked: tuple[LakeLocation, str, str]) -> dict[str, str]:
    """Reads the driver's word and leaves its own.

    Input: the lake, the folder there, the word in its file `driver`. Output: host; path of what
    was written; problem, empty when the word was there.
    """
    place, folder, word = asked
    path = f"{folder}/{uuid.uuid4().hex}"
    answer = {"host": socket.gethostname(), "path": path, "problem": ""}
    try:
        filesystem = place.filesystem("")
        with filesystem.open_input_stream(f"{folder}/driver") as stream:
            is_it = stream.read() == word.encode()
        with filesystem.open_output_stream(path) as stream:
            stream.write(b"")
    except OSError as error:
        return answer | {"problem": f"it does not find what the driver wrote ({error})"}
    return answer if is_it else answer | {"problem": "it finds another file of that name"}
