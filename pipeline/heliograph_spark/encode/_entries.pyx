# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Encodes messages from the buffers of Arrow columns. The module ``entries`` is the reference: the bytes are the same."""

from binascii import b2a_base64

from cpython.buffer cimport PyBUF_READ, PyBUF_SIMPLE, PyBuffer_FillInfo, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_Free
from cpython.memoryview cimport PyMemoryView_FromMemory
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t, uintptr_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcmp, memcpy, memset, strlen

from crc32c import crc32c
from heliograph_api.protocol.frames import FRAME_OVERHEAD

from heliograph_spark.encode.entries import java_hash
from heliograph_spark.encode.messages import BatchedKeys

cdef extern from "Python.h":
    char *PyOS_double_to_string(double, char, int, int, int *)
    int Py_DTSF_ADD_DOT_0

cdef enum:
    MAX_PROPERTIES = 16
    COPIED_BELOW_BYTES = 16384
    # The most bytes of what a message has beside its strings: tags, lengths and numbers, in an entry of its own.
    MOST_NUMBERS = 160

include "../decode/_buffers.pxi"
include "../decode/_metadata.pxi"

cdef uint8_t NOTHING = 0


cdef struct Strings:
    # A column of byte strings, from its first row on; without ``ends`` there is no such column.
    const uint8_t *validity
    int64_t offset
    const int32_t *ends
    const uint8_t *data


cdef struct Message:
    # What a message has beside its numbers; a span without data is not set.
    Span value
    Span key
    Span ordering_key
    bint base64
    int32_t first_pair
    int32_t end_pair
    uint64_t event_ms
    uint64_t sequence
    Py_ssize_t pairs_size


cdef Strings strings_of(object array) except *:
    cdef Strings found
    buffers = array.buffers()
    found.offset = array.offset
    found.validity = <const uint8_t *>address_of(buffers[0])
    found.ends = <const int32_t *>address_of(buffers[1]) + <int64_t>array.offset
    found.data = <const uint8_t *>address_of(buffers[2])
    if found.data == NULL:
        found.data = &NOTHING
    return found


cdef uintptr_t address_of(object buffer) except *:
    return 0 if buffer is None else <uintptr_t>buffer.address


cdef inline bint is_set(const uint8_t *validity, int64_t at) noexcept nogil:
    return validity == NULL or validity[at >> 3] >> (at & 7) & 1


cdef inline Span span_at(Strings *strings, Py_ssize_t row) noexcept nogil:
    cdef Span span
    span.data = NULL
    span.size = 0
    if strings.ends != NULL and is_set(strings.validity, strings.offset + row):
        span.data = strings.data + strings.ends[row]
        span.size = strings.ends[row + 1] - strings.ends[row]
    return span


cdef inline Py_ssize_t size_of(uint64_t number) noexcept nogil:
    """Return how many bytes a number takes."""
    cdef Py_ssize_t size = 1
    while number > 0x7F:
        number >>= 7
        size += 1
    return size


cdef inline uint8_t *put_number(uint8_t *at, uint64_t number) noexcept nogil:
    while number > 0x7F:
        at[0] = <uint8_t>(number & 0x7F | 0x80)
        number >>= 7
        at += 1
    at[0] = <uint8_t>number
    return at + 1


cdef inline uint8_t *put_bytes(uint8_t *at, Span span) noexcept nogil:
    """Write a string after its length."""
    at = put_number(at, span.size)
    memcpy(at, span.data, span.size)
    return at + span.size


cdef inline uint8_t *put_uint32(uint8_t *at, uint32_t number) noexcept nogil:
    at[0] = <uint8_t>(number >> 24)
    at[1] = <uint8_t>(number >> 16)
    at[2] = <uint8_t>(number >> 8)
    at[3] = <uint8_t>number
    return at + 4


cdef inline uint32_t checksum(const uint8_t *start, Py_ssize_t size) except? 0:
    # Copying takes less time than a view, unless that is long.
    if size < COPIED_BELOW_BYTES:
        return crc32c(PyBytes_FromStringAndSize(<const char *>start, size))
    return crc32c(PyMemoryView_FromMemory(<char *>start, size, PyBUF_READ))


include "_records.pxi"


cdef class EncodedRows:
    """The rows of a record batch of messages."""

    cdef Strings values
    cdef Strings keys
    cdef Strings ordering_keys
    cdef Strings names
    cdef Strings texts
    cdef const int32_t *pairs
    cdef const uint8_t *pairs_validity
    cdef int64_t pairs_offset
    cdef const int64_t *times
    cdef const uint8_t *times_validity
    cdef int64_t times_offset
    cdef const int64_t *sequences
    cdef Py_ssize_t count
    cdef object held
    # The base64 of the last key that is not text.
    cdef bytes encoded_key

    def __cinit__(self, object messages not None):
        self.held = messages
        self.count = messages.num_rows
        self.keys.ends = self.ordering_keys.ends = self.names.ends = self.texts.ends = NULL
        self.pairs = NULL
        self.times = self.sequences = NULL
        names = messages.schema.names
        self.values = strings_of(messages.column("value"))
        if "key" in names:
            self.keys = strings_of(messages.column("key"))
        if "ordering_key" in names:
            self.ordering_keys = strings_of(messages.column("ordering_key"))
        if "properties" in names:
            array = messages.column("properties")
            self.names = strings_of(array.keys)
            self.texts = strings_of(array.items)
            buffers = array.buffers()
            self.pairs_validity = <const uint8_t *>address_of(buffers[0])
            self.pairs_offset = array.offset
            self.pairs = <const int32_t *>address_of(buffers[1]) + <int64_t>array.offset
        if "event_ms" in names:
            array = messages.column("event_ms")
            buffers = array.buffers()
            self.times_validity = <const uint8_t *>address_of(buffers[0])
            self.times_offset = array.offset
            self.times = <const int64_t *>address_of(buffers[1]) + <int64_t>array.offset
        if "sequence" in names:
            array = messages.column("sequence")
            self.sequences = <const int64_t *>address_of(array.buffers()[1]) + <int64_t>array.offset

    cdef int check(self, Py_ssize_t start, Py_ssize_t stop) except -1:
        if not 0 <= start <= stop <= self.count:
            raise IndexError(f"rows {start} to {stop} of {self.count}")
        return 0

    cdef int read_key(self, Py_ssize_t row, Message *message) except -1:
        message.key = span_at(&self.keys, row)
        message.base64 = False
        if message.key.data != NULL and not is_utf8(message.key):
            self.encoded_key = b2a_base64(
                PyBytes_FromStringAndSize(<const char *>message.key.data, message.key.size), newline=False
            )
            message.base64 = True
            message.key.data = <const uint8_t *>PyBytes_AS_STRING(self.encoded_key)
            message.key.size = PyBytes_GET_SIZE(self.encoded_key)
        return 0

    cdef int read(self, Py_ssize_t row, uint64_t sequence, Message *message) except -1:
        """Read a row; its key is valid until the next one is read."""
        cdef int32_t pair
        message.value = span_at(&self.values, row)
        message.ordering_key = span_at(&self.ordering_keys, row)
        self.read_key(row, message)
        message.first_pair = message.end_pair = 0
        message.pairs_size = 0
        if self.pairs != NULL and is_set(self.pairs_validity, self.pairs_offset + row):
            message.first_pair = self.pairs[row]
            message.end_pair = self.pairs[row + 1]
            for pair in range(message.first_pair, message.end_pair):
                message.pairs_size += self.pair_size(pair)
                message.pairs_size += 1 + size_of(self.pair_size(pair))
        message.event_ms = 0
        if self.times != NULL and is_set(self.times_validity, self.times_offset + row):
            message.event_ms = <uint64_t>self.times[row]
        message.sequence = sequence if self.sequences == NULL else <uint64_t>self.sequences[row]
        return 0

    cdef inline Py_ssize_t pair_size(self, int32_t pair) noexcept:
        """Return the size of a property without its own tag and length."""
        cdef Span name = span_at(&self.names, pair)
        cdef Span text = span_at(&self.texts, pair)
        return 2 + size_of(name.size) + name.size + size_of(text.size) + text.size

    cdef uint8_t *put_pairs(self, uint8_t *at, Message *message, uint8_t tag) noexcept:
        cdef int32_t pair
        for pair in range(message.first_pair, message.end_pair):
            at[0] = tag
            at = put_number(at + 1, self.pair_size(pair))
            at[0] = 0x0A
            at = put_bytes(at + 1, span_at(&self.names, pair))
            at[0] = 0x12
            at = put_bytes(at + 1, span_at(&self.texts, pair))
        return at

    cdef object keys_of(self, Message *message):
        key = ordering_key = None
        if message.key.data != NULL:
            key = PyUnicode_DecodeUTF8(<const char *>message.key.data, message.key.size, NULL)
        if message.ordering_key.data != NULL:
            ordering_key = PyBytes_FromStringAndSize(
                <const char *>message.ordering_key.data, message.ordering_key.size
            )
        return BatchedKeys(key, bool(message.base64), ordering_key)

    def destinations(self, int32_t partitions, int64_t turn, int64_t stride):
        """As :meth:`.framing.Messages.destinations`, with the bytes of the numbers."""
        cdef Memory found = Memory()
        cdef Message message
        cdef Py_ssize_t row, at
        cdef uint32_t value
        for row in range(self.count):
            self.read_key(row, &message)
            if message.key.data == NULL:
                if stride:
                    found.put_int32(<int32_t>(turn // stride % partitions))
                    turn += 1
                else:
                    found.put_int32(<int32_t>(turn % partitions))
                continue
            value = 0
            for at in range(message.key.size):
                if message.key.data[at] >= 0x80:
                    text = PyUnicode_DecodeUTF8(<const char *>message.key.data, message.key.size, NULL)
                    value = <uint32_t>java_hash(text)
                    break
                value = 31 * value + message.key.data[at]
            found.put_int32(<int32_t>((value & 0x7FFFFFFF) % <uint32_t>partitions))
        return found, turn


cdef class EncodedBatch:
    """The messages of a batch."""

    cdef Memory data
    cdef readonly Py_ssize_t count
    cdef readonly uint64_t first
    cdef readonly uint64_t last
    cdef readonly object keys

    def __cinit__(self):
        self.data = Memory()
        self.count = 0
        self.first = self.last = 0
        self.keys = BatchedKeys(None, False, None)

    @property
    def size(self):
        return self.data.used

    def add(
        self,
        EncodedRows rows not None,
        Py_ssize_t start,
        Py_ssize_t stop,
        uint64_t sequence,
        Py_ssize_t most_messages,
        Py_ssize_t most_bytes,
    ):
        cdef Py_ssize_t row
        cdef Message message
        rows.check(start, stop)
        for row in range(start, stop):
            if self.count >= most_messages:
                return row
            rows.read(row, sequence + <uint64_t>(row - start), &message)
            if not self.put(rows, &message, most_bytes):
                return row
            if self.count == 0:
                self.first = message.sequence
                self.keys = rows.keys_of(&message)
            self.last = message.sequence
            self.count += 1
        return stop

    cdef bint put(self, EncodedRows rows, Message *message, Py_ssize_t most_bytes) except -1:
        cdef Py_ssize_t size = message.pairs_size + 1 + size_of(message.value.size) + 1 + size_of(message.sequence)
        cdef uint8_t *at
        if message.key.data != NULL:
            size += 1 + size_of(message.key.size) + message.key.size + 2 * message.base64
        if message.event_ms:
            size += 1 + size_of(message.event_ms)
        if message.ordering_key.data != NULL:
            size += 1 + size_of(message.ordering_key.size) + message.ordering_key.size
        if message.value.data == NULL:
            size += 2
        if 4 + size + message.value.size > most_bytes - self.data.used:
            return False
        if 4 + size + message.value.size > self.data.room - self.data.used:
            self.data.grow(4 + size + message.value.size)
        at = put_uint32(self.data.start + self.data.used, <uint32_t>size)
        at = rows.put_pairs(at, message, 0x0A)
        if message.key.data != NULL:
            at[0] = 0x12
            at = put_bytes(at + 1, message.key)
        at[0] = 0x18
        at = put_number(at + 1, message.value.size)
        if message.event_ms:
            at[0] = 0x28
            at = put_number(at + 1, message.event_ms)
        if message.base64:
            at[0] = 0x30
            at[1] = 1
            at += 2
        if message.ordering_key.data != NULL:
            at[0] = 0x3A
            at = put_bytes(at + 1, message.ordering_key)
        at[0] = 0x40
        at = put_number(at + 1, message.sequence)
        if message.value.data == NULL:
            at[0] = 0x48
            at[1] = 1
            at += 2
        else:
            memcpy(at, message.value.data, message.value.size)
        self.data.used += 4 + size + message.value.size
        return True

    def take(self):
        cdef Memory taken = self.data
        self.data = Memory()
        # The next batch is about as large.
        self.data.grow(taken.used)
        self.count = 0
        return memoryview(taken)


def single_frames(
    EncodedRows rows not None,
    Py_ssize_t start,
    Py_ssize_t stop,
    uint64_t sequence,
    object head not None,
    uint64_t publish_time,
    Py_ssize_t most_bytes,
    Py_ssize_t largest,
):
    """As :func:`.entries.single_frames`; the frames are a view of memory."""
    cdef Memory frames = Memory()
    cdef list ends = []
    cdef Py_ssize_t row, before
    cdef Py_ssize_t frame_overhead = FRAME_OVERHEAD
    cdef Message message
    cdef uint64_t producer_id = head.producer_id
    cdef bytes name = head.producer_name.encode()
    cdef bytes version = head.schema_version
    rows.check(start, stop)
    frames.grow(min(most_bytes, 1 << 20))
    for row in range(start, stop):
        if frames.used >= most_bytes:
            break
        rows.read(row, sequence + <uint64_t>(row - start), &message)
        if message.value.size > largest:
            break
        before = frames.used
        put_frame(frames, rows, &message, producer_id, name, version, publish_time)
        if frames.used - before > largest + frame_overhead:
            frames.used = before
            break
        ends.append(frames.used)
    return memoryview(frames), ends


cdef int put_frame(
    Memory frames,
    EncodedRows rows,
    Message *message,
    uint64_t producer_id,
    bytes name,
    bytes version,
    uint64_t publish_time,
) except -1:
    cdef Py_ssize_t most = (
        MOST_NUMBERS
        + message.pairs_size
        + message.key.size
        + message.ordering_key.size
        + message.value.size
        + PyBytes_GET_SIZE(name)
        + PyBytes_GET_SIZE(version)
    )
    cdef Py_ssize_t send_size = 2 + size_of(producer_id) + size_of(message.sequence)
    cdef uint8_t *start
    cdef uint8_t *entry
    cdef uint8_t *metadata
    cdef uint8_t *at
    cdef Span span
    if most > frames.room - frames.used:
        frames.grow(most)
    start = frames.start + frames.used
    # The sizes of the frame and of the command, and the command: its type, and SEND with the producer and the number.
    at = put_uint32(start + 4, <uint32_t>(4 + send_size))
    at[0] = 0x08
    at[1] = 0x06
    at[2] = 0x32
    at[3] = <uint8_t>send_size
    at[4] = 0x08
    at = put_number(at + 5, producer_id)
    at[0] = 0x10
    entry = put_number(at + 1, message.sequence)
    entry[0] = 0x0E
    entry[1] = 0x01
    metadata = entry + 10
    at = metadata
    at[0] = 0x0A
    span.data = <const uint8_t *>PyBytes_AS_STRING(name)
    span.size = PyBytes_GET_SIZE(name)
    at = put_bytes(at + 1, span)
    at[0] = 0x10
    at = put_number(at + 1, message.sequence)
    at[0] = 0x18
    at = put_number(at + 1, publish_time)
    at = rows.put_pairs(at, message, 0x22)
    if message.key.data != NULL:
        at[0] = 0x32
        at = put_bytes(at + 1, message.key)
    if message.event_ms:
        at[0] = 0x60
        at = put_number(at + 1, message.event_ms)
    if PyBytes_GET_SIZE(version):
        at[0] = 0x82
        at[1] = 0x01
        span.data = <const uint8_t *>PyBytes_AS_STRING(version)
        span.size = PyBytes_GET_SIZE(version)
        at = put_bytes(at + 2, span)
    if message.base64:
        at[0] = 0x88
        at[1] = 0x01
        at[2] = 1
        at += 3
    if message.ordering_key.data != NULL:
        at[0] = 0x92
        at[1] = 0x01
        at = put_bytes(at + 2, message.ordering_key)
    if message.value.data == NULL:
        at[0] = 0xC8
        at[1] = 0x01
        at[2] = 1
        at += 3
    put_uint32(entry + 6, <uint32_t>(at - metadata))
    if message.value.size:
        memcpy(at, message.value.data, message.value.size)
        at += message.value.size
    put_uint32(entry + 2, checksum(entry + 6, at - entry - 6))
    put_uint32(start, <uint32_t>(at - start - 4))
    frames.used += at - start
    return 0
