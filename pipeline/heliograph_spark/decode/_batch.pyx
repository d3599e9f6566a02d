# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Opens entries, and appends their messages to growing buffers, which Arrow takes over as they are.

Every length is compared with what is left before anything is read. Whatever is uncommon or wrong, the whole entry is
left to the module ``entries``, which is the reference: it reads it, or says what is wrong.
"""

from binascii import a2b_base64

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_FillInfo, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcmp, memcpy, memset

from crc32c import crc32c
from heliograph_api.protocol.ack_sets import MAX_BATCH_MESSAGES
from heliograph_api.protocol.wire_pb2 import MessageMetadata

cdef enum:
    # Properties of one message that are compared with each other in turn.
    MAX_PROPERTIES = 16
    COPIED_BELOW_BYTES = 16384

#: The last millisecond whose microseconds have 63 bits.
cdef uint64_t LAST_MS = 9223372036854775
#: The most messages that a batch may hold.
cdef int32_t MOST_MESSAGES = MAX_BATCH_MESSAGES

include "_buffers.pxi"
include "_metadata.pxi"
include "_opened.pxi"


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
        self.value = Column(self.value) if "value" in wanted else None
        self.key = Column(self.key) if "__key" in wanted else None
        self.ordering_key = Column(self.ordering_key) if "__orderingKey" in wanted else None
        self.message_id = Column(self.message_id) if "__messageId" in wanted else None
        if "__messageProperties" in wanted:
            self.names = Texts(self.names)
            self.texts = Texts(self.texts)
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
        if remaining is not None:
            bits = <const uint8_t *>PyBytes_AS_STRING(remaining)
            bytes_of_bits = PyBytes_GET_SIZE(remaining)
        for index in range(count):
            if index > up_to:
                break
            if end - at < 4:
                return False
            metadata_size = read_uint32(at)
            at += 4
            if <uint64_t>metadata_size > <uint64_t>(end - at):
                return False
            start = at + metadata_size
            if not read_single(at, start, &single) or single.payload_size > end - start:
                return False
            at = start + single.payload_size
            if not are_utf8(&single):
                return False
            if index <= after or single.compacted_out:
                continue
            if bits != NULL and not (index >> 3 < bytes_of_bits and bits[index >> 3] >> (index & 7) & 1):
                continue
            if not self.put_single(&single, start):
                return False
            if self.message_id is not None:
                self.put_id(head, index, tail)
            self.end_row(
                index,
                <int64_t>single.event_time * 1000,
                <int64_t>single.sequence_id if single.has_sequence_id else sequence_id,
            )
        return True

    cdef bint put_single(self, Single *single, const uint8_t *payload) except *:
        """Add the strings of a message but its id; False, and perhaps some of them, if something is uncommon."""
        cdef bytes key = None
        cdef Span span = single.key
        cdef int each
        if self.event_times is not None and single.event_time > LAST_MS:
            return False
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
                self.value.put(payload, single.payload_size)
        if self.ordering_key is not None:
            put_span(self.ordering_key, single.ordering_key)
        if self.names is not None:
            for each in range(single.properties):
                self.names.put(single.names[each].data, single.names[each].size)
                self.texts.put(single.texts[each].data, single.texts[each].size)
        return True

    def add_whole(self, OpenedEntry entry not None, bytes partition not None):
        """Add all messages of an entry.

        Return the payload's size, and a tuple of the number of rows, the entry's place, its publish time (us), producer,
        version of the schema and number of deliveries before; in its place None if no message of a batch is left. None,
        and no row, for what is uncommon or wrong.
        """
        cdef Whole whole
        cdef Py_ssize_t before = self.count
        cdef bint added = False
        if not entry.read(&whole) or whole.compression or whole.publish_time > LAST_MS:
            return None
        whole.single.payload_size = entry.held.len - entry.payload_at
        try:
            added = self.put_batch(entry, &whole, partition) if whole.batch else self.put_one(entry, &whole, partition)
        finally:
            if not added:
                self.truncate(before)
        if not added:
            return None
        if self.count == before:
            return whole.single.payload_size, None
        version = None
        if whole.schema_version.data != NULL:
            version = PyBytes_FromStringAndSize(<const char *>whole.schema_version.data, whole.schema_version.size)
        published = <int64_t>whole.publish_time * 1000
        producer = PyUnicode_DecodeUTF8(<const char *>whole.producer.data, whole.producer.size, NULL)
        place = self.count, entry.ledger, entry.entry
        return whole.single.payload_size, (*place, published, producer, version, entry.redelivery_count)

    cdef bint put_one(self, OpenedEntry entry, Whole *whole, bytes partition) except *:
        """Add the message that is an entry by itself; False, and perhaps some of its strings, if it is uncommon."""
        cdef uint8_t written[64]
        cdef const uint8_t *payload = entry.start() + entry.payload_at
        if not self.put_single(&whole.single, payload):
            return False
        if self.message_id is not None:
            self.message_id.put(written, put_place(written, entry.ledger, entry.entry, partition))
        self.end_row(-1, <int64_t>whole.single.event_time * 1000, <int64_t>whole.single.sequence_id)
        return True

    cdef bint put_batch(self, OpenedEntry entry, Whole *whole, bytes partition) except *:
        """Add the messages of a batch; False, and perhaps some of them, for what is uncommon or wrong."""
        cdef uint8_t written[64]
        cdef const uint8_t *payload = entry.start() + entry.payload_at
        cdef bytes head = b""
        cdef bytes tail = b""
        # A set of acknowledgments leaves some of the messages out.
        if whole.messages > MOST_MESSAGES or entry.ack_set:
            return False
        if self.message_id is not None:
            head = PyBytes_FromStringAndSize(
                <const char *>written, put_place(written, entry.ledger, entry.entry, partition)
            )
            written[0] = 0x30
            tail = PyBytes_FromStringAndSize(<const char *>written, 1 + put_varint(written + 1, whole.messages))
        return self.scan(
            payload,
            whole.single.payload_size,
            whole.messages,
            -1,
            whole.messages,
            None,
            <int64_t>whole.single.sequence_id,
            head,
            tail,
        )

    cdef int put_id(self, bytes head, int32_t index, bytes tail) except -1:
        """Add the id of a message of a batch: between the parts that it has from the entry, the index."""
        cdef uint8_t written[96]
        cdef Py_ssize_t used = PyBytes_GET_SIZE(head)
        memcpy(written, PyBytes_AS_STRING(head), used)
        written[used] = 0x20
        used += 1
        used += put_varint(written + used, <uint32_t>index)
        memcpy(written + used, PyBytes_AS_STRING(tail), PyBytes_GET_SIZE(tail))
        return self.message_id.put(written, used + PyBytes_GET_SIZE(tail))


cdef inline int put_span(Column column, Span span) except -1:
    if span.data == NULL:
        return column.put_null()
    return column.put(span.data, span.size)


cdef inline Py_ssize_t put_place(uint8_t *at, uint64_t ledger, uint64_t entry, bytes partition) except -1:
    """Write the part of a message id that all messages of an entry have, into 64 bytes; return how many it took."""
    cdef Py_ssize_t used
    if PyBytes_GET_SIZE(partition) > 16:
        raise ValueError("no partition of a message id is so long")
    at[0] = 0x08
    used = 1 + put_varint(at + 1, ledger)
    at[used] = 0x10
    used += 1
    used += put_varint(at + used, entry)
    memcpy(at + used, PyBytes_AS_STRING(partition), PyBytes_GET_SIZE(partition))
    return used + PyBytes_GET_SIZE(partition)


cdef inline Py_ssize_t put_varint(uint8_t *at, uint64_t number) noexcept nogil:
    """Write a number, and return how many bytes it took, at most ten."""
    cdef Py_ssize_t used = 0
    while number > 0x7F:
        at[used] = <uint8_t>(number & 0x7F | 0x80)
        used += 1
        number >>= 7
    at[used] = <uint8_t>number
    return used + 1
