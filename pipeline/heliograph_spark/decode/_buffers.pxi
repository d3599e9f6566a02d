"""Growing buffers of columns. Included in the modules ``_batch``, ``_avro``, ``_protobuf`` and ``_entries``."""

cdef enum:
    # The most bytes of a column of strings: Arrow's offsets have 32 bits with a sign.
    LARGEST_OFFSET = 0x7FFFFFFF
    # Bytes that a buffer begins with, where nothing was filled before, and at most: more than a batch of columns has.
    LEAST_ROOM = 256
    MOST_ROOM = 8388608


cdef class Memory:
    """Bytes that grow until they are given away."""

    cdef uint8_t *start
    cdef Py_ssize_t used
    cdef Py_ssize_t room
    cdef Py_ssize_t readers

    def __cinit__(self, Py_ssize_t room=LEAST_ROOM):
        self.used = self.readers = 0
        self.room = room
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


cdef inline Py_ssize_t room_like(Memory before) noexcept:
    """Return the bytes to begin with where ``before`` was filled: growing copies everything at each step.

    One batch of large messages does not take much memory for the batches after it.
    """
    return min(max(before.used + before.used // 8, LEAST_ROOM), MOST_ROOM)


cdef Memory bits_of(Memory flags, bint wanted):
    """Return a bit for each byte of ``flags``: 1 for those that are not 0 if ``wanted``, else for those that are."""
    cdef Memory bits = Memory()
    cdef Py_ssize_t row
    bits.grow(flags.used // 8 + 1)
    bits.used = flags.used // 8 + 1
    memset(bits.start, 0, bits.used)
    for row in range(flags.used):
        if (flags.start[row] != 0) == wanted:
            bits.start[row >> 3] |= <uint8_t>(1 << (row & 7))
    return bits


cdef bint is_text(const uint8_t *data, Py_ssize_t size) noexcept:
    """Return whether bytes are UTF-8."""
    cdef Py_ssize_t at
    for at in range(size):
        if data[at] >= 0x80:
            break
    else:
        return True
    try:
        PyUnicode_DecodeUTF8(<const char *>data, size, NULL)
    except UnicodeDecodeError:
        return False
    return True


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
        return None if self.count == 0 else bits_of(self.flags, False)


cdef class Texts:
    """Byte strings of any length, one after the other, and where each of them ends."""

    cdef Memory data
    cdef Memory offsets

    def __cinit__(self, Texts before=None):
        self.data = Memory(LEAST_ROOM if before is None else room_like(before.data))
        self.offsets = Memory(LEAST_ROOM if before is None else room_like(before.offsets))
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

    def __cinit__(self, Column before=None):
        self.texts = Texts(None if before is None else before.texts)
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
