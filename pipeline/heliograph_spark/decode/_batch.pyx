# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Appends the messages of a batch to growing buffers, which Arrow takes over as they are.

Every length is compared with what is left before anything is read. Whatever is uncommon or wrong, the whole batch is
left to the module ``entries``, which is the reference: it reads it, or says what is wrong.
"""

from binascii import a2b_base64

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_FillInfo, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcmp, memcpy, memset

cdef enum:
    # Properties of one message that are compared with each other in turn.
    MAX_PROPERTIES = 16
    LARGEST_OFFSET = 0x7FFFFFFF

#: The last millisecond whose microseconds have 63 bits.
cdef uint64_t LAST_MS = 9223372036854775


cdef class Memory:
    """Bytes that grow until they are given away."""

    cdef uint8_t *start
    cdef Py_ssize_t used
    cdef Py_ssize_t room
    cdef Py_ssize_t readers

    def __cinit__(self):
        self.used = self.readers = 0
        self.room = 256
        self.start = <uint8_t *>malloc(self.room)
        if self.start == NULL:
            raise MemoryError

    def __dealloc__(self):
        free(self.start)

    def __len__(self):
        return self.used

    def __getbuffer__(self, Py_buffer *view, int flags):
        PyBuffer_FillInfo(view, self, self.start, self.used, 1, flags)
        self.readers += 1

    def __releasebuffer__(self, Py_buffer *view):
        self.readers -= 1

    cdef int grow(self, Py_ssize_t more) except -1:
        cdef Py_ssize_t room = self.used + more
        cdef uint8_t *moved
        room += room // 2
        if self.readers:
            raise BufferError("bytes that are being read cannot move")
        moved = <uint8_t *>realloc(self.start, room)
        if moved == NULL:
            raise MemoryError
        self.start = moved
        self.room = room
        return 0

    cdef inline int put(self, const uint8_t *data, Py_ssize_t size) except -1:
        if size > self.room - self.used:
            self.grow(size)
        if size:
            memcpy(self.start + self.used, data, size)
            self.used += size
        return 0

    cdef inline int put_int32(self, int32_t number) except -1:
        return self.put(<const uint8_t *>&number, 4)

    cdef inline int put_int64(self, int64_t number) except -1:
        return self.put(<const uint8_t *>&number, 8)


cdef class Nulls:
    """Which rows of a column are null: one byte a row, for as long as rows are added."""

    cdef Memory flags
    cdef Py_ssize_t count

    def __cinit__(self):
        self.flags = Memory()
        self.count = 0

    cdef inline int put(self, bint null) except -1:
        cdef uint8_t flag = null
        self.count += null
        return self.flags.put(&flag, 1)

    cdef void truncate(self, Py_ssize_t rows) noexcept:
        while self.flags.used > rows:
            self.flags.used -= 1
            self.count -= self.flags.start[self.flags.used]

    cdef Memory validity(self):
        """Return the bitmap of the rows that are not null, None if all are not."""
        cdef Memory bits
        cdef Py_ssize_t row
        if self.count == 0:
            return None
        bits = Memory()
        bits.grow(self.flags.used // 8 + 1)
        bits.used = self.flags.used // 8 + 1
        memset(bits.start, 0, bits.used)
        for row in range(self.flags.used):
            if not self.flags.start[row]:
                bits.start[row >> 3] |= <uint8_t>(1 << (row & 7))
        return bits


cdef class Texts:
    """Byte strings of any length, one after the other, and where each of them ends."""

    cdef Memory data
    cdef Memory offsets

    def __cinit__(self):
        self.data = Memory()
        self.offsets = Memory()
        self.offsets.put_int32(0)

    cdef inline int put(self, const uint8_t *data, Py_ssize_t size) except -1:
        if size > LARGEST_OFFSET - self.data.used:
            raise OverflowError("more than 2 GiB in one column")
        self.data.put(data, size)
        return self.offsets.put_int32(<int32_t>self.data.used)

    cdef void truncate(self, Py_ssize_t rows) noexcept:
        self.offsets.used = 4 * (rows + 1)
        self.data.used = (<int32_t *>self.offsets.start)[rows]


cdef class Column:
    """A column of byte strings that may be null."""

    cdef Texts texts
    cdef Nulls nulls

    def __cinit__(self):
        self.texts = Texts()
        self.nulls = Nulls()

    cdef inline int put(self, const uint8_t *data, Py_ssize_t size) except -1:
        self.nulls.put(False)
        return self.texts.put(data, size)

    cdef inline int put_null(self) except -1:
        self.nulls.put(True)
        return self.texts.put(NULL, 0)

    cdef int put_object(self, object data) except -1:
        cdef Py_buffer view
        if data is None:
            return self.put_null()
        PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
        try:
            self.put(<const uint8_t *>view.buf, view.len)
        finally:
            PyBuffer_Release(&view)
        return 0

    cdef void truncate(self, Py_ssize_t rows) noexcept:
        self.texts.truncate(rows)
        self.nulls.truncate(rows)

    cdef tuple taken(self):
        return self.nulls.count, self.nulls.validity(), self.texts.offsets, self.texts.data


cdef struct Span:
    const uint8_t *data
    Py_ssize_t size


cdef struct Single:
    # The metadata of one message of a batch; a span without data was not set.
    Span key
    Span ordering_key
    Span names[MAX_PROPERTIES]
    Span texts[MAX_PROPERTIES]
    int properties
    int64_t payload_size
    uint64_t event_time
    uint64_t sequence_id
    bint has_sequence_id
    bint compacted_out
    bint base64
    bint null_value
    bint null_key


cdef inline const uint8_t *read_varint(const uint8_t *at, const uint8_t *end, uint64_t *number) noexcept nogil:
    """Read at most nine bytes, which is below 2^63. NULL for more, or if they do not end."""
    cdef uint64_t found = 0
    cdef int shift = 0
    while at < end and shift < 63:
        found |= <uint64_t>(at[0] & 0x7F) << shift
        if at[0] < 0x80:
            number[0] = found
            return at + 1
        at += 1
        shift += 7
    return NULL


cdef inline const uint8_t *read_span(const uint8_t *at, const uint8_t *end, Span *span) noexcept nogil:
    cdef uint64_t size
    at = read_varint(at, end, &size)
    if at == NULL or size > <uint64_t>(end - at):
        return NULL
    span.data = at
    span.size = <Py_ssize_t>size
    return at + size


cdef bint read_pair(Span pair, Span *name, Span *text) noexcept nogil:
    cdef const uint8_t *at = pair.data
    cdef const uint8_t *end = pair.data + pair.size
    cdef uint8_t tag
    name.data = NULL
    text.data = NULL
    while at < end:
        tag = at[0]
        # What is there twice is not looked at: the strings of both would have to be valid.
        if tag == 0x0A and name.data == NULL:
            at = read_span(at + 1, end, name)
        elif tag == 0x12 and text.data == NULL:
            at = read_span(at + 1, end, text)
        else:
            return False
        if at == NULL:
            return False
    return name.data != NULL and text.data != NULL


cdef bint read_single(const uint8_t *at, const uint8_t *end, Single *single) noexcept nogil:
    """Return whether the metadata is complete and has nothing uncommon; strings are not looked at."""
    cdef uint64_t number
    cdef uint8_t tag
    cdef Span pair
    cdef int other
    single.key.data = single.ordering_key.data = NULL
    single.key.size = single.ordering_key.size = 0
    single.properties = 0
    single.payload_size = -1
    single.event_time = single.sequence_id = 0
    single.has_sequence_id = single.compacted_out = single.base64 = single.null_value = single.null_key = False
    while at < end:
        tag = at[0]
        at += 1
        if tag == 0x0A:
            at = read_span(at, end, &pair)
            if at == NULL or single.properties == MAX_PROPERTIES:
                return False
            if not read_pair(pair, &single.names[single.properties], &single.texts[single.properties]):
                return False
            for other in range(single.properties):
                if same(single.names[other], single.names[single.properties]):
                    return False
            single.properties += 1
            continue
        if tag == 0x12:
            if single.key.data != NULL:
                return False
            at = read_span(at, end, &single.key)
        elif tag == 0x3A:
            at = read_span(at, end, &single.ordering_key)
        else:
            at = read_varint(at, end, &number)
            if at == NULL:
                return False
            if tag == 0x18:
                if number > 0x7FFFFFFF:
                    return False
                single.payload_size = <int64_t>number
            elif tag == 0x20:
                single.compacted_out = number != 0
            elif tag == 0x28:
                single.event_time = number
            elif tag == 0x30:
                single.base64 = number != 0
            elif tag == 0x40:
                single.sequence_id = number
                single.has_sequence_id = True
            elif tag == 0x48:
                single.null_value = number != 0
            elif tag == 0x50:
                single.null_key = number != 0
            else:
                return False
        if at == NULL:
            return False
    return single.payload_size >= 0


cdef inline bint same(Span one, Span other) noexcept nogil:
    return one.size == other.size and memcmp(one.data, other.data, one.size) == 0


cdef bint is_utf8(Span span) noexcept:
    cdef Py_ssize_t at
    for at in range(span.size):
        if span.data[at] >= 0x80:
            break
    else:
        return True
    try:
        PyUnicode_DecodeUTF8(<const char *>span.data, span.size, NULL)
    except UnicodeDecodeError:
        return False
    return True


cdef class RowBuffers:
    """The rows that were added since the last :meth:`take`, of the columns that are wanted."""

    cdef Column value
    cdef Column key
    cdef Column ordering_key
    cdef Column message_id
    cdef Texts names
    cdef Texts texts
    cdef Memory properties_ends
    cdef Memory event_times
    cdef Nulls event_nulls
    cdef Memory sequence_ids
    cdef Memory indexes
    cdef Memory row_ends
    cdef frozenset wanted
    cdef readonly Py_ssize_t count

    def __cinit__(self, frozenset wanted):
        self.wanted = wanted
        self.begin()

    cdef int begin(self) except -1:
        wanted = self.wanted
        self.count = 0
        self.indexes = Memory()
        self.row_ends = Memory()
        self.value = Column() if "value" in wanted else None
        self.key = Column() if "__key" in wanted else None
        self.ordering_key = Column() if "__orderingKey" in wanted else None
        self.message_id = Column() if "__messageId" in wanted else None
        self.names = self.texts = self.properties_ends = None
        if "__messageProperties" in wanted:
            self.names = Texts()
            self.texts = Texts()
            self.properties_ends = Memory()
            self.properties_ends.put_int32(0)
        self.event_times = self.event_nulls = None
        if "__eventTime" in wanted:
            self.event_times = Memory()
            self.event_nulls = Nulls()
        self.sequence_ids = Memory() if "__sequenceId" in wanted else None
        return 0

    def ends(self):
        return self.row_ends

    def add(
        self,
        int32_t index,
        object value,
        bytes key,
        bytes ordering_key,
        int64_t event_time,
        int64_t sequence_id,
        dict properties,
        bytes message_id,
    ):
        cdef Py_ssize_t before = self.count
        try:
            self.add_row(index, value, key, ordering_key, event_time, sequence_id, properties, message_id)
        except BaseException:
            self.truncate(before)
            raise

    cdef int add_row(
        self,
        int32_t index,
        object value,
        bytes key,
        bytes ordering_key,
        int64_t event_time,
        int64_t sequence_id,
        dict properties,
        bytes message_id,
    ) except -1:
        cdef bytes encoded
        if self.value is not None:
            self.value.put_object(value)
        if self.key is not None:
            self.key.put_object(key)
        if self.ordering_key is not None:
            self.ordering_key.put_object(ordering_key)
        if self.message_id is not None:
            self.message_id.put_object(message_id)
        if self.names is not None:
            for name, text in properties.items():
                encoded = name.encode()
                self.names.put(<const uint8_t *>PyBytes_AS_STRING(encoded), PyBytes_GET_SIZE(encoded))
                encoded = text.encode()
                self.texts.put(<const uint8_t *>PyBytes_AS_STRING(encoded), PyBytes_GET_SIZE(encoded))
        return self.end_row(index, event_time, sequence_id)

    cdef int end_row(self, int32_t index, int64_t event_time, int64_t sequence_id) except -1:
        """Add the numbers of a row whose strings are added."""
        cdef int64_t size = 0
        if self.names is not None:
            self.properties_ends.put_int32(<int32_t>(self.names.offsets.used // 4 - 1))
            size += self.names.data.used + self.texts.data.used
        if self.event_times is not None:
            self.event_times.put_int64(event_time)
            self.event_nulls.put(event_time == 0)
        if self.sequence_ids is not None:
            self.sequence_ids.put_int64(sequence_id)
        if self.value is not None:
            size += self.value.texts.data.used
        if self.key is not None:
            size += self.key.texts.data.used
        if self.ordering_key is not None:
            size += self.ordering_key.texts.data.used
        self.indexes.put_int32(index)
        self.row_ends.put_int64(size)
        self.count += 1
        return 0

    def truncate(self, Py_ssize_t count):
        cdef Py_ssize_t pairs
        if count > self.count or count < 0:
            raise ValueError("there are not so many rows")
        if self.value is not None:
            self.value.truncate(count)
        if self.key is not None:
            self.key.truncate(count)
        if self.ordering_key is not None:
            self.ordering_key.truncate(count)
        if self.message_id is not None:
            self.message_id.truncate(count)
        if self.names is not None:
            self.properties_ends.used = 4 * (count + 1)
            pairs = (<int32_t *>self.properties_ends.start)[count]
            self.names.truncate(pairs)
            self.texts.truncate(pairs)
        if self.event_times is not None:
            self.event_times.used = 8 * count
            self.event_nulls.truncate(count)
        if self.sequence_ids is not None:
            self.sequence_ids.used = 8 * count
        self.indexes.used = 4 * count
        self.row_ends.used = 8 * count
        self.count = count

    def take(self):
        """Return the columns: number of nulls, validity or None, and then what Arrow's type has; begin again."""
        taken = {"__batchIndex": (0, None, self.indexes)}
        for name, column in (
            ("value", self.value),
            ("__key", self.key),
            ("__orderingKey", self.ordering_key),
            ("__messageId", self.message_id),
        ):
            if column is not None:
                taken[name] = (<Column>column).taken()
        if self.names is not None:
            taken["__messageProperties"] = (
                0,
                None,
                self.properties_ends,
                self.names.offsets,
                self.names.data,
                self.texts.offsets,
                self.texts.data,
            )
        if self.event_times is not None:
            taken["__eventTime"] = self.event_nulls.count, self.event_nulls.validity(), self.event_times
        if self.sequence_ids is not None:
            taken["__sequenceId"] = 0, None, self.sequence_ids
        self.begin()
        return taken

    def add_batch(
        self,
        object opened,
        int32_t count,
        int32_t after,
        int32_t up_to,
        bytes remaining,
        int64_t sequence_id,
        bytes head,
        bytes tail,
    ):
        cdef Py_ssize_t before = self.count
        cdef bint added = False
        cdef Py_buffer view
        if PyBytes_GET_SIZE(head) > 64 or PyBytes_GET_SIZE(tail) > 16:
            raise ValueError("no head or tail of a message id is so long")
        PyObject_GetBuffer(opened, &view, PyBUF_SIMPLE)
        try:
            added = self.scan(
                <const uint8_t *>view.buf, view.len, count, after, up_to, remaining, sequence_id, head, tail
            )
        finally:
            PyBuffer_Release(&view)
            if not added:
                self.truncate(before)
        return added

    cdef bint scan(
        self,
        const uint8_t *at,
        Py_ssize_t size,
        int32_t count,
        int32_t after,
        int32_t up_to,
        bytes remaining,
        int64_t sequence_id,
        bytes head,
        bytes tail,
    ) except *:
        cdef const uint8_t *end = at + size
        cdef const uint8_t *start
        cdef const uint8_t *bits = NULL
        cdef Py_ssize_t bytes_of_bits = 0
        cdef uint32_t metadata_size
        cdef int32_t index
        cdef Single single
        cdef bytes key
        cdef Span span
        cdef int each
        if remaining is not None:
            bits = <const uint8_t *>PyBytes_AS_STRING(remaining)
            bytes_of_bits = PyBytes_GET_SIZE(remaining)
        for index in range(count):
            if index > up_to:
                break
            if end - at < 4:
                return False
            metadata_size = <uint32_t>at[0] << 24 | <uint32_t>at[1] << 16 | <uint32_t>at[2] << 8 | at[3]
            at += 4
            if <uint64_t>metadata_size > <uint64_t>(end - at):
                return False
            start = at + metadata_size
            if not read_single(at, start, &single) or single.payload_size > end - start:
                return False
            at = start + single.payload_size
            if single.key.data != NULL and not is_utf8(single.key):
                return False
            for each in range(single.properties):
                if not is_utf8(single.names[each]) or not is_utf8(single.texts[each]):
                    return False
            if index <= after or single.compacted_out:
                continue
            if bits != NULL and not (index >> 3 < bytes_of_bits and bits[index >> 3] >> (index & 7) & 1):
                continue
            if self.event_times is not None and single.event_time > LAST_MS:
                return False
            key = None
            span = single.key
            if single.null_key:
                span.data = NULL
            elif single.base64 and span.data != NULL:
                try:
                    key = a2b_base64(PyBytes_FromStringAndSize(<const char *>span.data, span.size), strict_mode=True)
                except ValueError:
                    return False
                span.data = <const uint8_t *>PyBytes_AS_STRING(key)
                span.size = PyBytes_GET_SIZE(key)
            if self.key is not None:
                put_span(self.key, span)
            if self.value is not None:
                if single.null_value:
                    self.value.put_null()
                else:
                    self.value.put(start, single.payload_size)
            if self.ordering_key is not None:
                put_span(self.ordering_key, single.ordering_key)
            if self.names is not None:
                for each in range(single.properties):
                    self.names.put(single.names[each].data, single.names[each].size)
                    self.texts.put(single.texts[each].data, single.texts[each].size)
            if self.message_id is not None:
                self.put_id(head, index, tail)
            self.end_row(
                index,
                <int64_t>single.event_time * 1000,
                <int64_t>single.sequence_id if single.has_sequence_id else sequence_id,
            )
        return True

    cdef int put_id(self, bytes head, int32_t index, bytes tail) except -1:
        """Add the id of a message of a batch: between the parts that it has from the entry, the index."""
        cdef uint8_t written[96]
        cdef Py_ssize_t used = PyBytes_GET_SIZE(head)
        cdef uint32_t number = <uint32_t>index
        memcpy(written, PyBytes_AS_STRING(head), used)
        written[used] = 0x20
        used += 1
        while number > 0x7F:
            written[used] = <uint8_t>(number & 0x7F | 0x80)
            used += 1
            number >>= 7
        written[used] = <uint8_t>number
        used += 1
        memcpy(written + used, PyBytes_AS_STRING(tail), PyBytes_GET_SIZE(tail))
        return self.message_id.put(written, used + PyBytes_GET_SIZE(tail))


cdef inline int put_span(Column column, Span span) except -1:
    if span.data == NULL:
        return column.put_null()
    return column.put(span.data, span.size)
