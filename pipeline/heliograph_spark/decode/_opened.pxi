"""Opens entries as brokers deliver them. Included in the module ``_batch``."""


# Clearing a circle of garbage would forget the buffer without releasing it. No entry is a part of one: it refers to
# nothing that could refer to it.
@cython.no_gc
cdef class OpenedEntry:
    """An entry with the right checksum and nothing uncommon in its metadata: no chunk, nothing encrypted, no marker.

    Its strings are UTF-8, or the metadata could not be made, which would be found only when it is asked for.
    Has what the class ``ReceivedEntry`` of the module ``entries`` asks for; the metadata is made when it is asked for.
    """

    cdef readonly object ledger
    cdef readonly object entry
    cdef readonly object redelivery_count
    cdef readonly object ack_set
    #: The number of messages, those included that are not to be read.
    cdef readonly int32_t messages
    #: Bytes, or a view of them, and where they are in memory, which they cannot leave before this ends.
    cdef object data
    cdef Py_buffer held
    cdef Py_ssize_t metadata_at
    cdef Py_ssize_t payload_at
    cdef object parsed

    def __cinit__(self, object data):
        PyObject_GetBuffer(data, &self.held, PyBUF_SIMPLE)
        self.data = data

    def __dealloc__(self):
        PyBuffer_Release(&self.held)

    @property
    def metadata(self):
        if self.parsed is None:
            self.parsed = MessageMetadata.FromString(bytes(self.data[self.metadata_at : self.payload_at]))
        return self.parsed

    @property
    def payload(self):
        # A copy takes less time than a view, unless it is long.
        if self.held.len < COPIED_BELOW_BYTES:
            return self.data[self.payload_at :]
        return memoryview(self.data)[self.payload_at :]

    cdef inline const uint8_t *start(self) noexcept:
        return <const uint8_t *>self.held.buf

    cdef bint read(self, Whole *whole) noexcept:
        cdef const uint8_t *start = self.start()
        return read_whole(start + self.metadata_at, start + self.payload_at, whole)


cdef inline uint32_t read_uint32(const uint8_t *at) noexcept nogil:
    return <uint32_t>at[0] << 24 | <uint32_t>at[1] << 16 | <uint32_t>at[2] << 8 | at[3]


def open_entry(tuple head, object data):
    """Return an entry: ``head`` is what the command before it says. None for one that must be opened in Python."""
    cdef uint32_t metadata_size
    cdef Whole whole
    cdef OpenedEntry opened = OpenedEntry.__new__(OpenedEntry, data)
    cdef Py_ssize_t size = opened.held.len
    cdef const uint8_t *start = opened.start()
    if size < 10 or start[0] != 0x0E or start[1] != 0x01:
        return None
    metadata_size = read_uint32(start + 6)
    if <uint64_t>metadata_size > <uint64_t>(size - 10):
        return None
    # Copying takes less time than a view of the rest, unless that is long.
    if crc32c(data[6:] if size < COPIED_BELOW_BYTES else memoryview(data)[6:]) != read_uint32(start + 2):
        return None
    if not read_whole(start + 10, start + 10 + metadata_size, &whole):
        return None
    if not is_utf8(whole.producer) or not are_utf8(&whole.single):
        return None
    _, opened.ledger, opened.entry, opened.redelivery_count, opened.ack_set = head
    opened.messages = whole.messages
    opened.metadata_at = 10
    opened.payload_at = 10 + metadata_size
    return opened
