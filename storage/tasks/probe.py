"""The check at the start on a cluster that a Spark task sees the lake that the driver sees."""

from __future__ import annotations

import socket
import uuid

from storage.files.location import LakeLocation


def answer_probe(probe: tuple[LakeLocation, str, str]) -> dict[str, str]:
    """Reads the driver's file in the lake, and writes one of its own.

    Input: the lake, the folder there, the content of its file `driver`. Output: host; path of the
    file that was written; problem, empty when the content was the same.
    """
    location, folder, content = probe
    path = f"{folder}/{uuid.uuid4().hex}"
    answer = {"host": socket.gethostname(), "path": path, "problem": ""}

    try:
        filesystem = location.filesystem("")
        with filesystem.open_input_stream(f"{folder}/driver") as stream:
            is_same = stream.read() == content.encode()
        with filesystem.open_output_stream(path) as stream:
            stream.write(b"")
    except OSError as error:
        return answer | {"problem": f"it does not find what the driver wrote ({error})"}

    return answer if is_same else answer | {"problem": "it finds another file of that name"}
