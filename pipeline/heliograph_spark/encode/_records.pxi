"""Encodes records in Avro and in JSON from Arrow's arrays. Included in the module ``_entries``."""

cdef enum:
    INT32 = 0
    INT64 = 1
    FLOAT = 2
    DOUBLE = 3
    BOOLEAN = 4
    TEXT = 5
    BYTES = 6
    LIST = 7
    MAP = 8
    RECORD = 9
    CONSTANT = 10

KINDS = {
    "int32": INT32,
    "int64": INT64,
    "float": FLOAT,
    "double": DOUBLE,
    "boolean": BOOLEAN,
    "text": TEXT,
    "bytes": BYTES,
    "list": LIST,
    "map": MAP,
    "record": RECORD,
    "constant": CONSTANT,
}

cdef const uint8_t *HEX = b"0123456789abcdef"


cdef class Field:
    """A part of a record: ``null`` is which of two types is null in Avro's union, -1 where it cannot be null.

    A record has ``children`` with these ``names``, a list and a map have one. A constant is the same for all rows.
    """

    cdef int kind
    cdef int null
    cdef list children
    cdef list labels
    cdef list names
    cdef bytes constant
    # The array that is encoded, and what it consists of.
    cdef object held
    cdef const uint8_t *validity
    cdef int64_t offset
    cdef const uint8_t *numbers
    cdef Strings strings
    cdef const int32_t *ends
    cdef Strings keys

    def __cinit__(self, str kind not None, int null, list children not None, list names not None, bytes constant):
        self.kind = KINDS[kind]
        self.null = null
        self.children = children
        self.labels = names
        # As JSON has them.
        self.names = [json_text(name) + b": " for name in names]
        self.constant = constant

    def bind(self, object array):
        """Take the rows of an array of the right type; those of a record are its columns."""
        cdef Field child
        self.held = array
        if self.kind == CONSTANT:
            return
        if self.kind == RECORD and self.null == -2:
            # The whole record: its columns.
            columns = iter(array)
            for each in self.children:
                child = each
                if child.kind != CONSTANT and array:
                    child.bind(next(columns))
            return
        buffers = array.buffers()
        self.validity = <const uint8_t *>address_of(buffers[0])
        self.offset = array.offset
        if self.kind == RECORD:
            for name, each in zip(self.labels, self.children):
                (<Field>each).bind(array.field(name))
        elif self.kind == LIST:
            self.ends = <const int32_t *>address_of(buffers[1]) + <int64_t>array.offset
            (<Field>self.children[0]).bind(array.values)
        elif self.kind == MAP:
            self.ends = <const int32_t *>address_of(buffers[1]) + <int64_t>array.offset
            self.keys = strings_of(array.keys)
            (<Field>self.children[0]).bind(array.items)
        elif self.kind == TEXT or self.kind == BYTES:
            self.strings = strings_of(array)
        else:
            self.numbers = <const uint8_t *>address_of(buffers[1])

    cdef inline bint there(self, Py_ssize_t row) noexcept:
        return is_set(self.validity, self.offset + row)

    cdef int64_t integer(self, Py_ssize_t row) noexcept:
        if self.kind == INT32:
            return (<const int32_t *>self.numbers)[self.offset + row]
        return (<const int64_t *>self.numbers)[self.offset + row]

    cdef bint boolean(self, Py_ssize_t row) noexcept:
        return self.numbers[(self.offset + row) >> 3] >> ((self.offset + row) & 7) & 1

    cdef bint put_avro(self, Py_ssize_t row, Memory out) except -1:
        """Write a row; False if it is null and cannot be."""
        cdef Field child
        cdef int32_t at, first, end
        cdef float single
        cdef Span span
        cdef uint8_t byte
        if self.kind == CONSTANT:
            out.put(<const uint8_t *>PyBytes_AS_STRING(self.constant), PyBytes_GET_SIZE(self.constant))
            return True
        if self.null != -2:
            if not self.there(row):
                if self.null < 0:
                    return False
                put_zigzag(out, self.null)
                return True
            if self.null >= 0:
                put_zigzag(out, 1 - self.null)
        if self.kind == RECORD:
            for each in self.children:
                child = each
                if not child.put_avro(row, out):
                    return False
        elif self.kind == INT32 or self.kind == INT64:
            put_zigzag(out, self.integer(row))
        elif self.kind == FLOAT:
            single = (<const float *>self.numbers)[self.offset + row]
            out.put(<const uint8_t *>&single, 4)
        elif self.kind == DOUBLE:
            out.put(self.numbers + 8 * (self.offset + row), 8)
        elif self.kind == BOOLEAN:
            byte = self.boolean(row)
            out.put(&byte, 1)
        elif self.kind == TEXT or self.kind == BYTES:
            span = span_at(&self.strings, row)
            if self.kind == TEXT and not is_utf8(span):
                return False
            put_zigzag(out, span.size)
            out.put(span.data, span.size)
        else:
            first = self.ends[row]
            end = self.ends[row + 1]
            child = self.children[0]
            if end > first:
                put_zigzag(out, end - first)
            for at in range(first, end):
                if self.kind == MAP:
                    span = span_at(&self.keys, at)
                    if not is_utf8(span):
                        return False
                    put_zigzag(out, span.size)
                    out.put(span.data, span.size)
                if not child.put_avro(at, out):
                    return False
            put_zigzag(out, 0)
        return True

    cdef bint put_json(self, Py_ssize_t row, Memory out) except -1:
        """As :meth:`put_avro`, as Python's ``json`` writes it."""
        cdef Field child
        cdef int32_t at, first, end
        cdef Span span
        if self.null != -2 and not self.there(row):
            if self.null < 0:
                return False
            out.put(<const uint8_t *>b"null", 4)
            return True
        if self.kind == RECORD:
            out.put(<const uint8_t *>b"{", 1)
            for at in range(<int32_t>len(self.children)):
                if at:
                    out.put(<const uint8_t *>b", ", 2)
                put_object(out, self.names[at])
                child = self.children[at]
                if not child.put_json(row, out):
                    return False
            out.put(<const uint8_t *>b"}", 1)
        elif self.kind == INT32 or self.kind == INT64:
            put_integer(out, self.integer(row))
        elif self.kind == DOUBLE:
            put_double(out, (<const double *>self.numbers)[self.offset + row])
        elif self.kind == BOOLEAN:
            if self.boolean(row):
                out.put(<const uint8_t *>b"true", 4)
            else:
                out.put(<const uint8_t *>b"false", 5)
        elif self.kind == TEXT:
            span = span_at(&self.strings, row)
            if not is_utf8(span):
                return False
            put_json_text(out, span)
        elif self.kind == BYTES:
            span = span_at(&self.strings, row)
            out.put(<const uint8_t *>b'"', 1)
            put_object(out, b2a_base64(PyBytes_FromStringAndSize(<const char *>span.data, span.size), newline=False))
            out.put(<const uint8_t *>b'"', 1)
        else:
            first = self.ends[row]
            end = self.ends[row + 1]
            child = self.children[0]
            out.put(<const uint8_t *>(b"{" if self.kind == MAP else b"["), 1)
            for at in range(first, end):
                if at > first:
                    out.put(<const uint8_t *>b", ", 2)
                if self.kind == MAP:
                    span = span_at(&self.keys, at)
                    if not is_utf8(span):
                        return False
                    put_json_text(out, span)
                    out.put(<const uint8_t *>b": ", 2)
                if not child.put_json(at, out):
                    return False
            out.put(<const uint8_t *>(b"}" if self.kind == MAP else b"]"), 1)
        return True


cdef inline int put_object(Memory out, bytes data) except -1:
    return out.put(<const uint8_t *>PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data))


cdef inline int put_zigzag(Memory out, int64_t number) except -1:
    cdef uint8_t written[10]
    cdef uint8_t *end = put_number(written, (<uint64_t>number << 1) ^ <uint64_t>(number >> 63))
    return out.put(written, end - written)


cdef int put_integer(Memory out, int64_t number) except -1:
    cdef uint8_t written[20]
    cdef Py_ssize_t at = 20
    cdef uint64_t left = <uint64_t>number if number >= 0 else 0 - <uint64_t>number
    while True:
        at -= 1
        written[at] = <uint8_t>(48 + left % 10)
        left //= 10
        if not left:
            break
    if number < 0:
        out.put(<const uint8_t *>b"-", 1)
    return out.put(written + at, 20 - at)


cdef int put_double(Memory out, double number) except -1:
    cdef char *written
    if number != number:
        return out.put(<const uint8_t *>b"NaN", 3)
    if number - number != 0:
        return out.put(<const uint8_t *>b"Infinity", 8) if number > 0 else out.put(<const uint8_t *>b"-Infinity", 9)
    written = PyOS_double_to_string(number, c'r', 0, Py_DTSF_ADD_DOT_0, NULL)
    if written == NULL:
        raise MemoryError
    try:
        return out.put(<const uint8_t *>written, strlen(written))
    finally:
        PyMem_Free(written)


cdef int put_json_text(Memory out, Span span) except -1:
    """Write a text in quotes; what is not ASCII stays as it is."""
    cdef Py_ssize_t at, begun = 0
    cdef uint8_t byte
    cdef uint8_t escaped[6]
    cdef Py_ssize_t size
    out.put(<const uint8_t *>b'"', 1)
    for at in range(span.size):
        byte = span.data[at]
        if byte >= 0x20 and byte != 0x22 and byte != 0x5C:
            continue
        out.put(span.data + begun, at - begun)
        begun = at + 1
        escaped[0] = 0x5C
        size = 2
        if byte == 0x22 or byte == 0x5C:
            escaped[1] = byte
        elif byte == 0x0A:
            escaped[1] = 0x6E
        elif byte == 0x0D:
            escaped[1] = 0x72
        elif byte == 0x09:
            escaped[1] = 0x74
        elif byte == 0x0C:
            escaped[1] = 0x66
        elif byte == 0x08:
            escaped[1] = 0x62
        else:
            escaped[1] = 0x75
            escaped[2] = escaped[3] = 0x30
            escaped[4] = HEX[byte >> 4]
            escaped[5] = HEX[byte & 15]
            size = 6
        out.put(escaped, size)
    out.put(span.data + begun, span.size - begun)
    return out.put(<const uint8_t *>b'"', 1)


cdef bytes json_text(str text):
    cdef Memory out = Memory()
    cdef bytes encoded = text.encode()
    cdef Span span
    span.data = <const uint8_t *>PyBytes_AS_STRING(encoded)
    span.size = PyBytes_GET_SIZE(encoded)
    put_json_text(out, span)
    return PyBytes_FromStringAndSize(<const char *>out.start, out.used)


def encode_records(Field record not None, list columns not None, Py_ssize_t count, bint in_json):
    """Return the bytes of all rows and where each ends, as Arrow has them; None if a row does not fit.

    ``columns`` are those of the record that are no constants, in their order.
    """
    cdef Memory data = Memory()
    cdef Memory ends = Memory()
    cdef Py_ssize_t row
    record.bind(columns)
    ends.put_int32(0)
    try:
        for row in range(count):
            if not (record.put_json(row, data) if in_json else record.put_avro(row, data)):
                return None
            if data.used > LARGEST_OFFSET:
                return None
            ends.put_int32(<int32_t>data.used)
    finally:
        record.bind([])
    return data, ends
