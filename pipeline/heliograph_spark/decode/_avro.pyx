# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Decodes records in Avro to growing buffers, which Arrow takes over as they are.

Every length is compared with what is left before anything is read. Whatever is uncommon or wrong, all of the values are
left to the module ``values``, which is the reference: it reads them, or says what is wrong.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_FillInfo, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcmp, memcpy, memset

cdef enum:
    # Keys of one map that are compared with each other in turn.
    MAX_KEYS = 16
    # The days of Python's dates, from 1970.
    FIRST_DAY = -719162
    LAST_DAY = 2932896

#: The milliseconds of Python's moments, from 1970.
cdef int64_t FIRST_MS = -62135596800000
cdef int64_t LAST_MS = 253402300799999

include "_buffers.pxi"
include "_values.pxi"

cdef enum:
    BOOLEAN
    INT
    LONG
    FLOAT
    DOUBLE
    STRING
    BYTES
    FIXED
    ENUM
    DATE
    MILLIS
    MICROS
    RECORD
    ARRAY
    MAP

_KINDS = {
    "boolean": BOOLEAN,
    "int": INT,
    "long": LONG,
    "float": FLOAT,
    "double": DOUBLE,
    "string": STRING,
    "bytes": BYTES,
    "fixed": FIXED,
    "enum": ENUM,
    "date": DATE,
    "timestamp-millis": MILLIS,
    "timestamp-micros": MICROS,
    "record": RECORD,
    "array": ARRAY,
    "map": MAP,
}


cdef class Node:
    """The values of one type: a column, or what is within one."""

    cdef int kind
    # The branch of the union that is null, -1 where it is no union.
    cdef int null_branch
    cdef Py_ssize_t fixed_size
    cdef tuple symbols
    cdef list children
    cdef Memory numbers
    cdef Texts texts
    cdef Nulls nulls
    cdef readonly Py_ssize_t count

    def __cinit__(self, tuple plan):
        self.null_branch = -1
        if plan[0] == "nullable":
            self.null_branch = plan[1]
            plan = plan[2]
        self.kind = _KINDS[plan[0]]
        self.count = 0
        self.nulls = Nulls()
        self.children = []
        if self.kind == RECORD:
            self.children = [Node(child) for _, child in plan[1]]
        elif self.kind == ARRAY or self.kind == MAP:
            self.children = [Node(plan[1])]
            self.numbers = Memory()
            self.numbers.put_int32(0)
        elif self.kind == FIXED:
            self.fixed_size = plan[1]
        elif self.kind == ENUM:
            self.symbols = plan[1]
        else:
            self.numbers = Memory()
        if self.kind in (STRING, BYTES, FIXED, ENUM, MAP):
            self.texts = Texts()

    cdef int put_null(self) except -1:
        cdef uint8_t nothing[8]
        memset(nothing, 0, 8)
        self.nulls.put(True)
        self.count += 1
        if self.kind == RECORD:
            for child in self.children:
                (<Node>child).put_null()
        elif self.kind == ARRAY or self.kind == MAP:
            self.numbers.put_int32(<int32_t>(<Node>self.children[0]).count)
        elif self.texts is not None:
            self.texts.put(NULL, 0)
        else:
            self.numbers.put(nothing, self.width())
        return 0

    cdef inline Py_ssize_t width(self) noexcept:
        if self.kind == BOOLEAN:
            return 1
        return 4 if self.kind in (INT, FLOAT, DATE) else 8

    cdef const uint8_t *read(self, const uint8_t *at, const uint8_t *end, bint keep) except? NULL:
        """Read a value, and keep it; return where the next one begins, NULL if something is uncommon."""
        cdef int64_t number
        if self.null_branch >= 0:
            at = read_long(at, end, &number)
            if at == NULL or number < 0 or number > 1:
                return NULL
            if number == self.null_branch:
                if keep:
                    self.put_null()
                return at
        if self.kind == RECORD:
            for child in self.children:
                at = (<Node>child).read(at, end, keep)
                if at == NULL:
                    return NULL
        elif self.kind == ARRAY or self.kind == MAP:
            at = self.read_items(at, end, keep)
        elif self.texts is not None:
            at = self.read_text(at, end, keep)
        else:
            at = self.read_number(at, end, keep)
        if keep and at != NULL:
            self.nulls.put(False)
            self.count += 1
        return at

    cdef const uint8_t *read_number(self, const uint8_t *at, const uint8_t *end, bint keep) except? NULL:
        cdef int64_t number
        cdef Py_ssize_t width
        if self.kind in (BOOLEAN, FLOAT, DOUBLE):
            width = self.width()
            if width > end - at or (self.kind == BOOLEAN and at[0] > 1):
                return NULL
            if keep:
                self.numbers.put(at, width)
            return at + width
        at = read_long(at, end, &number)
        if at == NULL:
            return NULL
        if self.kind == INT:
            if number != <int32_t>number:
                return NULL
        elif self.kind == DATE:
            if number < FIRST_DAY or number > LAST_DAY:
                return NULL
        elif self.kind == MILLIS:
            if number < FIRST_MS or number > LAST_MS:
                return NULL
            number *= 1000
        elif self.kind == MICROS:
            if number < FIRST_MS * 1000 or number > LAST_MS * 1000 + 999:
                return NULL
        if keep:
            if self.kind == INT or self.kind == DATE:
                self.numbers.put_int32(<int32_t>number)
            else:
                self.numbers.put_int64(number)
        return at

    cdef const uint8_t *read_text(self, const uint8_t *at, const uint8_t *end, bint keep) except? NULL:
        cdef int64_t size = self.fixed_size
        cdef bytes symbol
        if self.kind != FIXED:
            at = read_long(at, end, &size)
            if at == NULL or size < 0:
                return NULL
        if self.kind == ENUM:
            if size >= len(self.symbols):
                return NULL
            if keep:
                symbol = self.symbols[size]
                self.texts.put(<const uint8_t *>PyBytes_AS_STRING(symbol), PyBytes_GET_SIZE(symbol))
            return at
        if size > end - at or (self.kind == STRING and not is_text(at, size)):
            return NULL
        if keep:
            self.texts.put(at, size)
        return at + size

    cdef const uint8_t *read_items(self, const uint8_t *at, const uint8_t *end, bint keep) except? NULL:
        cdef Node child = self.children[0]
        cdef const uint8_t *keys[MAX_KEYS]
        cdef Py_ssize_t sizes[MAX_KEYS]
        cdef Py_ssize_t found = 0
        cdef Py_ssize_t each
        cdef int64_t items, size
        while True:
            at = read_long(at, end, &items)
            if at == NULL:
                return NULL
            if items == 0:
                break
            if items < 0:
                # The bytes of the block, which nobody skips here.
                at = read_long(at, end, &size)
                if at == NULL or items < -LARGEST_OFFSET:
                    return NULL
                items = -items
            # Items without bytes could be any number of them.
            if items > end - at:
                return NULL
            while items > 0:
                items -= 1
                if self.kind == MAP:
                    at = read_long(at, end, &size)
                    if at == NULL or size < 0 or size > end - at or found == MAX_KEYS or not is_text(at, size):
                        return NULL
                    for each in range(found):
                        # The later one would take the place of the other.
                        if sizes[each] == size and memcmp(keys[each], at, size) == 0:
                            return NULL
                    keys[found] = at
                    sizes[found] = size
                    found += 1
                    if keep:
                        self.texts.put(at, size)
                    at += size
                at = child.read(at, end, keep)
                if at == NULL:
                    return NULL
        if keep:
            self.numbers.put_int32(<int32_t>child.count)
        return at

    def taken(self):
        """Return the rows, those that are null, the validity or None, and then what Arrow's type has."""
        head = self.count, self.nulls.count, self.nulls.validity()
        if self.kind == RECORD:
            return (*head, [(<Node>child).taken() for child in self.children])
        if self.kind == ARRAY:
            return (*head, self.numbers, (<Node>self.children[0]).taken())
        if self.kind == MAP:
            child = (<Node>self.children[0]).taken()
            return (*head, self.numbers, (child[0], 0, None, self.texts.offsets, self.texts.data), child)
        if self.texts is not None:
            return (*head, self.texts.offsets, self.texts.data)
        return (*head, bits_of(self.numbers, True) if self.kind == BOOLEAN else self.numbers)


cdef inline const uint8_t *read_long(const uint8_t *at, const uint8_t *end, int64_t *number) noexcept nogil:
    cdef uint64_t found
    at = read_uint64(at, end, &found)
    if at != NULL:
        number[0] = with_sign(found)
    return at


def decode(tuple plan, list kept, Py_ssize_t first, Py_ssize_t count, object validity, object offsets, object data):
    """Decode records of a plan's fields; return what :meth:`Node.taken` gives of those that are kept, by their order.

    The values are as in :class:`Values`. Returns None if something about a value is uncommon or wrong.
    """
    cdef list fields = [(Node(child), keep) for (_, child), keep in zip(plan[1], kept, strict=True)]
    cdef Values values = Values(first, count, validity, offsets, data)
    cdef Py_ssize_t row
    cdef const uint8_t *at
    for row in range(count):
        if not values.find(row):
            for node, keep in fields:
                if keep:
                    (<Node>node).put_null()
            continue
        at = values.start
        for node, keep in fields:
            at = (<Node>node).read(at, values.end, keep)
            if at == NULL:
                return None
        if at != values.end:
            return None
    return [(<Node>node).taken() for node, keep in fields if keep]
