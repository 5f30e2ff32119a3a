"""Kafka headers of many records at once, as flat Arrow columns: a look-up is one pass in C.

A header is a name (text, never null) and a value (bytes or null); names may come twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
Mask = Any  # numpy array of bool; numpy's generics say more than they help


def truth(values: pa.Array | pa.ChunkedArray) -> Mask:
    """Returns a boolean column as a numpy array, null as false."""
    return pc.fill_null(values, False).to_numpy(zero_copy_only=False)


def combined(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Returns a column in one piece; one that is so already is not copied."""
    if isinstance(column, pa.Array):
        return column
    if column.num_chunks == 1:
        return column.chunk(0)
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)


def as_text(values: pa.Array) -> pa.Array:
    """Returns bytes as text, null where they are not UTF-8."""
    try:
        return values.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([_text(value) for value in values.to_pylist()], pa.string())


def _text(value: bytes | None) -> str | None:
    try:
        return None if value is None else value.decode()
    except UnicodeDecodeError:
        return None


class Headers:
    """The headers of a frame's records.

    Input: a column of HEADERS, null counts as none; the names that can be looked up: the
    protocol's. Every other name is the user's.
    """

    def __init__(self, column: pa.ChunkedArray, names: Sequence[str]) -> None:
        lists = combined(column).cast(HEADERS)
        self.count = len(lists)
        sizes = pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False)
        self._starts = np.zeros(self.count + 1, np.int32)
        np.cumsum(sizes, out=self._starts[1:])
        flat = lists.flatten()
        self._names, self._values = flat.flatten()
        self._record = np.repeat(np.arange(self.count), sizes)
        encoded = self._names.dictionary_encode()  # the same few come again and again
        name_of = encoded.indices.to_numpy()
        known = pc.index_in(encoded.dictionary, value_set=pa.array(names, pa.string()))
        self._codes = pc.fill_null(known, -1).to_numpy()[name_of]
        self._code_of = {name: code for code, name in enumerate(names)}
        self._is_user = self._codes < 0
        self._texts = as_text(self._values)
        self._is_text = truth(self._texts.is_valid())
        self._is_repeated = self._repeated(name_of)
        self._first_places = self._first()

    def _repeated(self, names: Any) -> Mask:
        """Returns for each header whether its record has one of that name before it.

        Input: `names`: each header's, as a number.
        """
        repeated = np.zeros(len(names), bool)
        if len(names) == 0 or not self._has_repeated(names):
            return repeated
        key = self._record * (int(names.max()) + 1) + names
        order = np.argsort(key, kind="stable")
        repeated[order[1:]] = key[order[1:]] == key[order[:-1]]
        return repeated

    def _has_repeated(self, names: Any) -> bool:
        """Returns whether any record can have a name twice; a bit a name, while there are bits."""
        if int(names.max()) > 52:
            return True
        bits = np.int64(1) << names.astype(np.int64)
        starts = self._starts[:-1][np.diff(self._starts) > 0]
        either = np.bitwise_or.reduceat(bits, starts)
        return bool((np.add.reduceat(bits, starts) != either).any())

    def _first(self) -> dict[int, Any]:
        """Returns the position of each record's first header of each name that any of them has."""
        found = np.flatnonzero((self._codes >= 0) & ~self._is_repeated)
        codes = self._codes[found]
        places = {}
        for code in np.flatnonzero(np.bincount(codes)):
            at = found[codes == code]
            places[int(code)] = np.full(self.count, -1, np.int32)
            places[int(code)][self._record[at]] = at
        return places

    def _found(self, name: str, values: pa.Array) -> pa.Array:
        """Returns the value of each record's first header of that name, or null."""
        places = self._first_places.get(self._code_of[name])
        if places is None:
            return pa.nulls(self.count, values.type)
        return values.take(pa.array(places, mask=places < 0))

    def has(self, name: str) -> Mask:
        """Returns for each record whether it has a header of that name."""
        places = self._first_places.get(self._code_of[name])
        return np.zeros(self.count, bool) if places is None else places >= 0

    def raw(self, name: str) -> pa.Array:
        """Returns the bytes of the first header of that name, or null."""
        return self._found(name, self._values)

    def text(self, name: str) -> pa.Array:
        """Returns the first header of that name as text, null where it is not UTF-8."""
        return self._found(name, self._texts)

    def all_in_columns(self) -> Mask:
        """Returns for each record whether text columns hold all of its headers, each name once."""
        fits = np.ones(self.count, bool)
        fits[self._record[~self._is_text | self._is_repeated]] = False
        return fits

    def sizes(self) -> Any:
        """Returns the bytes of each record's headers, names and values."""
        lengths = [pc.fill_null(pc.binary_length(part), 0).to_numpy(zero_copy_only=False)
                   for part in (self._names, self._values)]  # fmt: skip
        total = np.concatenate([[0], np.cumsum(lengths[0].astype(np.int64) + lengths[1])])
        return total[self._starts[1:]] - total[self._starts[:-1]]

    def user_properties(self, wanted: Mask) -> pa.Array:
        """Returns the user's headers, where it is text, as maps; null where it is not wanted."""
        kept = self._is_user & self._is_text & ~self._is_repeated & wanted[self._record]
        places = pa.array(np.flatnonzero(kept))
        starts = np.zeros(self.count + 1, np.int32)
        np.cumsum(np.bincount(self._record[kept], minlength=self.count), out=starts[1:])
        return pa.MapArray.from_arrays(
            pa.array(starts),
            self._names.take(places),
            self._texts.take(places),
            mask=pa.array(~wanted),
        )

    def all_headers(self, wanted: Mask) -> pa.Array:
        """Returns all headers as they came; null where they are not wanted."""
        if not wanted.any():
            return pa.nulls(self.count, HEADERS)
        flat = pa.StructArray.from_arrays([self._names, self._values], ["key", "value"])
        lists = pa.ListArray.from_arrays(pa.array(self._starts), flat).cast(HEADERS)
        return lists.take(pa.array(np.arange(self.count), mask=~wanted))
