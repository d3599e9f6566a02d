"""The values of an Arrow array of bytes, and their numbers. Included in the modules ``_avro`` and ``_protobuf``."""


cdef class Values:
    """The bytes of ``count`` values of an Arrow array, from ``first`` on, with its buffers.

    ``validity`` is None where none is null.
    """

    cdef Py_buffer bits
    cdef Py_buffer borders
    cdef Py_buffer data
    cdef bint some_null
    cdef Py_ssize_t first
    # The bytes of the value that :meth:`find` has found.
    cdef const uint8_t *start
    cdef const uint8_t *end

    def __cinit__(self, Py_ssize_t first, Py_ssize_t count, object validity, object offsets, object data):
        self.first = first
        self.some_null = validity is not None
        if self.some_null:
            PyObject_GetBuffer(validity, &self.bits, PyBUF_SIMPLE)
        PyObject_GetBuffer(offsets, &self.borders, PyBUF_SIMPLE)
        PyObject_GetBuffer(data, &self.data, PyBUF_SIMPLE)
        if first < 0 or count < 0 or (first + count + 1) * 4 > self.borders.len:
            raise ValueError("there are not so many values")
        if self.some_null and first + count > self.bits.len * 8:
            raise ValueError("there are not so many values")

    def __dealloc__(self):
        # Releasing what was not taken does nothing.
        PyBuffer_Release(&self.bits)
        PyBuffer_Release(&self.borders)
        PyBuffer_Release(&self.data)

    cdef bint find(self, Py_ssize_t row) except -1:
        """Find the bytes of the value ``row``, which is one of ``count``; False if it is null."""
        cdef const int32_t *border = <const int32_t *>self.borders.buf + self.first + row
        row += self.first
        if self.some_null and not (<const uint8_t *>self.bits.buf)[row >> 3] >> (row & 7) & 1:
            return False
        if border[0] < 0 or border[1] < border[0] or border[1] > self.data.len:
            raise ValueError("a value is outside of the buffer")
        self.start = <const uint8_t *>self.data.buf + border[0]
        self.end = <const uint8_t *>self.data.buf + border[1]
        return True


cdef inline const uint8_t *read_uint64(const uint8_t *at, const uint8_t *end, uint64_t *number) noexcept nogil:
    """Read a number of seven bits a byte; NULL if it has more than 64 bits, or does not end."""
    cdef uint64_t found = 0
    cdef int shift = 0
    while at < end and shift < 64:
        if shift == 63 and at[0] > 1:
            return NULL
        found |= <uint64_t>(at[0] & 0x7F) << shift
        if at[0] < 0x80:
            number[0] = found
            return at + 1
        at += 1
        shift += 7
    return NULL


cdef inline int64_t with_sign(uint64_t number) noexcept nogil:
    """Return the number whose sign is the lowest bit (ZigZag)."""
    return <int64_t>(number >> 1) ^ -<int64_t>(number & 1)
