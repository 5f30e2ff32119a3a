"""Kafka headers of many records at once, as flat Arrow columns: a look-up is one pass in C.

A header is a name (text, never null) and a value (bytes or null); names may come twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from storage.schemas import HEADERS

Mask = Any  # numpy array of bool; numpy's generic types make signatures long


def to_mask(values: pa.Array | pa.ChunkedArray) -> Mask:
    """Returns a boolean column as a numpy array, null as false."""
    return pc.fill_null(values, False).to_numpy(zero_copy_only=False)


def combined(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Returns a column as one array; a single chunk is not copied."""
    if isinstance(column, pa.Array):
        return column
    if column.num_chunks == 1:
        return column.chunk(0)

    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)


def byte_lengths(values: pa.Array) -> Any:
    """Returns the length of each value in bytes; 0 for null."""
    return pc.fill_null(pc.binary_length(values), 0).to_numpy(zero_copy_only=False)


def as_text(values: pa.Array) -> pa.Array:
    """Returns bytes as text, null where they are not UTF-8."""
    try:
        return values.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([_text(value) for value in values.to_pylist()], pa.string())


def _text(value: bytes | None) -> str | None:
    """Returns a value as text; None for None or bytes that are not UTF-8."""
    try:
        return None if value is None else value.decode()
    except UnicodeDecodeError:
        return None


class Headers:
    """The headers of a frame's records.

    Input: a column of HEADERS (null: no headers); `names`: the protocol's, which can be looked up.
    Every other name is the user's.
    """

    def __init__(self, column: pa.ChunkedArray, names: Sequence[str]) -> None:
        lists = combined(column).cast(HEADERS)
        self.count = len(lists)
        counts = pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False)
        self._starts = np.zeros(self.count + 1, np.int32)
        np.cumsum(counts, out=self._starts[1:])

        # One entry a header: the index of its record, its name and its value.
        self._record = np.repeat(np.arange(self.count), counts)
        self._names, self._values = lists.flatten().flatten()
        self._texts = as_text(self._values)
        self._is_text = to_mask(self._texts.is_valid())

        # A header's code is the index of its name in `names`; -1 for a name of the user's.
        encoded = self._names.dictionary_encode()  # the same few come again and again
        name_index = encoded.indices.to_numpy()
        code_by_index = pc.index_in(encoded.dictionary, value_set=pa.array(names, pa.string()))
        self._codes = pc.fill_null(code_by_index, -1).to_numpy()[name_index]
        self._code_by_name = {name: code for code, name in enumerate(names)}
        self._is_user = self._codes < 0

        self._is_repeated = self._find_repeated(name_index)
        self._first_headers = self._find_first_headers()

    def _find_repeated(self, names: Any) -> Mask:
        """Returns for each header whether its record has one of that name before it.

        Input: `names`: each header's, as a number.
        """
        is_repeated = np.zeros(len(names), bool)
        if len(names) == 0 or not self._can_have_repeated(names):
            return is_repeated

        key = self._record * (int(names.max()) + 1) + names
        order = np.argsort(key, kind="stable")
        is_repeated[order[1:]] = key[order[1:]] == key[order[:-1]]
        return is_repeated

    def _can_have_repeated(self, names: Any) -> bool:
        """Returns whether any record can have a name twice.

        Each name is one bit of 53, so the sum of a record's names is exact; it differs from their
        union if a name comes twice. With more names the answer is yes.
        """
        if int(names.max()) > 52:
            return True

        bits = np.int64(1) << names.astype(np.int64)
        starts = self._starts[:-1][np.diff(self._starts) > 0]
        union = np.bitwise_or.reduceat(bits, starts)
        return bool((np.add.reduceat(bits, starts) != union).any())

    def _find_first_headers(self) -> dict[int, Any]:
        """Returns, by code, the index of each record's first header of that name, or -1."""
        headers = np.flatnonzero((self._codes >= 0) & ~self._is_repeated)
        codes = self._codes[headers]

        first_headers = {}
        for code in np.flatnonzero(np.bincount(codes)):
            of_code = headers[codes == code]
            index = np.full(self.count, -1, np.int32)
            index[self._record[of_code]] = of_code
            first_headers[int(code)] = index
        return first_headers

    def _take_first(self, name: str, values: pa.Array) -> pa.Array:
        """Returns the value of each record's first header of that name, or null."""
        index = self._first_headers.get(self._code_by_name[name])
        if index is None:
            return pa.nulls(self.count, values.type)
        return values.take(pa.array(index, mask=index < 0))

    def has(self, name: str) -> Mask:
        """Returns for each record whether it has a header of that name."""
        index = self._first_headers.get(self._code_by_name[name])
        return np.zeros(self.count, bool) if index is None else index >= 0

    def raw(self, name: str) -> pa.Array:
        """Returns the bytes of the first header of that name, or null."""
        return self._take_first(name, self._values)

    def text(self, name: str) -> pa.Array:
        """Returns the first header of that name as text, null where it is not UTF-8."""
        return self._take_first(name, self._texts)

    def all_in_columns(self) -> Mask:
        """Returns for each record whether text columns hold all of its headers, each name once."""
        is_in_columns = np.ones(self.count, bool)
        is_in_columns[self._record[~self._is_text | self._is_repeated]] = False
        return is_in_columns

    def sizes(self) -> Any:
        """Returns the bytes of each record's headers, names and values."""
        lengths = byte_lengths(self._names).astype(np.int64) + byte_lengths(self._values)
        total = np.concatenate([[0], np.cumsum(lengths)])
        return total[self._starts[1:]] - total[self._starts[:-1]]

    def user_properties(self, is_wanted: Mask) -> pa.Array:
        """Returns the user's headers that are text, as maps; null for records not wanted."""
        is_property = self._is_user & self._is_text & ~self._is_repeated
        is_property &= is_wanted[self._record]
        properties = pa.array(np.flatnonzero(is_property))

        starts = np.zeros(self.count + 1, np.int32)
        counts = np.bincount(self._record[is_property], minlength=self.count)
        np.cumsum(counts, out=starts[1:])

        return pa.MapArray.from_arrays(
            pa.array(starts),
            self._names.take(properties),
            self._texts.take(properties),
            mask=pa.array(~is_wanted),
        )

    def all_headers(self, is_wanted: Mask) -> pa.Array:
        """Returns all headers as they came; null for records not wanted."""
        if not is_wanted.any():
            return pa.nulls(self.count, HEADERS)

        flat = pa.StructArray.from_arrays([self._names, self._values], ["key", "value"])
        lists = pa.ListArray.from_arrays(pa.array(self._starts), flat).cast(HEADERS)
        return lists.take(pa.array(np.arange(self.count), mask=~is_wanted))
