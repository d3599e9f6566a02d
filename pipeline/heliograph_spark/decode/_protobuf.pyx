# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Decodes messages in Protobuf to growing buffers, which Arrow takes over as they are.

Every length is compared with what is left before anything is read. Whatever is uncommon or wrong, all of the values are
left to the module ``protobuf_values``, which is the reference: it reads them, or says what is wrong.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_FillInfo, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcmp, memcpy, memset

cdef enum:
    # Keys of one map that are compared with each other in turn.
    MAX_KEYS = 16
    # The bytes of a tag or a size; protobuf refuses longer ones.
    MAX_TAG_BYTES = 5

cdef enum:
    # How a value is written.
    VARINT = 0
    IN_8_BYTES = 1
    SIZED = 2
    IN_4_BYTES = 5

#: The seconds whose microseconds have 63 bits, whatever nanoseconds are added.
cdef int64_t LAST_SECOND = 9223372030000

include "_buffers.pxi"
include "_values.pxi"

cdef enum:
    BOOL
    INT32
    SINT32
    UINT32
    INT64
    SINT64
    BITS32
    BITS64
    STRING
    BYTES
    ENUM
    MOMENT
    MESSAGE
    LIST
    MAP

#: By the name of a kind, the kind itself and how it is written.
_KINDS = {
    "bool": (BOOL, VARINT),
    "int32": (INT32, VARINT),
    "sint32": (SINT32, VARINT),
    "uint32": (UINT32, VARINT),
    "int64": (INT64, VARINT),
    "sint64": (SINT64, VARINT),
    "uint64": (INT64, VARINT),
    "bits32": (BITS32, IN_4_BYTES),
    "bits64": (BITS64, IN_8_BYTES),
    "enum": (ENUM, VARINT),
    "string": (STRING, SIZED),
    "bytes": (BYTES, SIZED),
    "moment": (MOMENT, SIZED),
    "message": (MESSAGE, SIZED),
    "list": (LIST, SIZED),
    "map": (MAP, SIZED),
}


cdef class Field:
    """A field of a message, or the items of one: a column, or what is within one, if it is ``kept``."""

    cdef uint32_t number
    cdef int kind
    # How it is written, and the bytes of a number in its column.
    cdef int wire
    cdef Py_ssize_t width
    cdef bint kept
    # What it is where it is not set: null, or this number or text; a message in a map is as one without bytes.
    cdef bint null_if_unset
    cdef uint64_t unset_number
    cdef bytes unset_text
    # The place of the ``oneof`` that it is in, -1 for none.
    cdef Py_ssize_t oneof
    # The texts of an enum's numbers, and whether others are not known at all.
    cdef dict names
    cdef bint closed
    # The type of a message, a moment, or the keys and values of a map; the items of a list.
    cdef Message message
    cdef Field items
    # The last value that was read. The upper half of a number is always zero.
    cdef bint set
    cdef uint64_t value[2]
    cdef const uint8_t *text
    cdef Py_ssize_t size
    cdef bytes held
    # The column.
    cdef Memory numbers
    cdef Texts texts
    cdef Nulls nulls
    cdef Py_ssize_t count

    def __cinit__(self, tuple plan):
        self.number, kind, self.width, self.kept, unset, self.oneof, of = plan
        self.kind, self.wire = _KINDS[kind]
        self.null_if_unset = unset is None
        if isinstance(unset, bytes):
            self.unset_text = unset
        elif unset is not None:
            self.unset_number = unset
        if self.kind == ENUM:
            self.names, self.closed = of
        elif self.kind == LIST:
            self.items = Field(of)
        elif of is not None:
            self.message = Message(of)
            self.message.is_entry = self.kind == MAP
        if not self.kept:
            return
        self.nulls = Nulls()
        if self.kind == LIST or self.kind == MAP:
            self.numbers = Memory()
            self.numbers.put_int32(0)
        elif self.kind in (STRING, BYTES, ENUM):
            self.texts = Texts()
        elif self.kind != MESSAGE:
            self.numbers = Memory()

    cdef const uint8_t *read(self, const uint8_t *at, const uint8_t *end, int wire) except? NULL:
        """Read an occurrence, and keep what is repeated; return where it ends, NULL if something is uncommon."""
        if self.kind == LIST:
            return self.read_items(at, end, wire)
        if wire != self.wire or (self.set and (self.kind == MESSAGE or self.kind == MOMENT)):
            # Of the other type it is unknown; the same message twice is the union of both.
            return NULL
        self.set = True
        if self.kind == MAP:
            return self.read_entry(at, end)
        return self.read_one(at, end)

    cdef const uint8_t *read_items(self, const uint8_t *at, const uint8_t *end, int wire) except? NULL:
        cdef const uint8_t *inner_end
        cdef uint64_t size
        if wire == self.items.wire:
            at = self.items.read_one(at, end)
            if at != NULL and self.kept:
                self.items.put()
            return at
        if wire != SIZED:
            return NULL
        at = read_size(at, end, &size)
        if at == NULL:
            return NULL
        inner_end = at + size
        while at < inner_end:
            at = self.items.read_one(at, inner_end)
            if at == NULL:
                return NULL
            if self.kept:
                self.items.put()
        return at

    cdef const uint8_t *read_entry(self, const uint8_t *at, const uint8_t *end) except? NULL:
        """Read a key and a value; NULL also for a key that is there, whose value would be another one."""
        cdef Field keys = <Field>self.message.fields[0]
        cdef uint64_t size
        at = read_size(at, end, &size)
        if at == NULL or not self.message.read(at, at + size):
            return NULL
        if self.kept and not keys.last_is_new((<const int32_t *>self.numbers.start)[self.count]):
            return NULL
        return at + size

    cdef bint last_is_new(self, Py_ssize_t first) noexcept:
        """Whether the last of the values from ``first`` on is none of the others, and these are few."""
        cdef Py_ssize_t last = self.count - 1
        cdef Py_ssize_t row
        cdef const int32_t *ends
        cdef const uint8_t *data
        if last - first >= MAX_KEYS:
            return False
        if self.texts is None:
            data = self.numbers.start
            for row in range(first, last):
                if memcmp(data + row * self.width, data + last * self.width, self.width) == 0:
                    return False
            return True
        ends = <const int32_t *>self.texts.offsets.start
        data = self.texts.data.start
        for row in range(first, last):
            if ends[row + 1] - ends[row] == ends[last + 1] - ends[last]:
                if memcmp(data + ends[row], data + ends[last], ends[last + 1] - ends[last]) == 0:
                    return False
        return True

    cdef const uint8_t *read_one(self, const uint8_t *at, const uint8_t *end) except? NULL:
        """Read a value: a message is kept at once, field by field, anything else by :meth:`put`."""
        cdef uint64_t number
        if self.wire == VARINT:
            at = read_uint64(at, end, &number)
            return at if at != NULL and self.take(number) else NULL
        if self.wire == IN_4_BYTES or self.wire == IN_8_BYTES:
            number = 4 if self.wire == IN_4_BYTES else 8
            if <int64_t>number > end - at:
                return NULL
            self.value[0] = 0
            memcpy(&self.value[0], at, number)
            return at + number
        at = read_size(at, end, &number)
        if at == NULL:
            return NULL
        if self.message is not None:
            if not self.message.read(at, at + number) or (self.kind == MOMENT and not self.take_moment()):
                return NULL
        else:
            if self.kind == STRING and not is_text(at, number):
                return NULL
            self.text = at
            self.size = number
        return at + number

    cdef bint take(self, uint64_t number) except -1:
        """Take a number as it is written; False for one that is too large for its type, or no name's."""
        cdef int64_t signed = <int64_t>number
        cdef bytes name
        if self.kind == SINT32 or self.kind == SINT64:
            signed = with_sign(number)
        if self.kind == INT32 or self.kind == SINT32 or self.kind == ENUM:
            if signed != <int32_t>signed:
                return False
        elif (self.kind == UINT32 and number > 0xFFFFFFFF) or (self.kind == BOOL and number > 1):
            return False
        if self.kind == ENUM:
            name = self.names.get(signed)
            if name is None:
                if self.closed:
                    return False
                # A number that is new where the message was written has no name here.
                name = self.held = b"%d" % signed
            self.text = <const uint8_t *>PyBytes_AS_STRING(name)
            self.size = PyBytes_GET_SIZE(name)
        else:
            self.value[0] = <uint64_t>signed
        return True

    cdef bint take_moment(self) noexcept:
        """Take seconds and nanoseconds as microseconds; False for what may have more than 64 bits."""
        cdef Field seconds = <Field>self.message.fields[0]
        cdef Field nanos = <Field>self.message.fields[1]
        cdef int64_t whole = <int64_t>seconds.value[0] if seconds.set else 0
        cdef int64_t part = <int64_t>nanos.value[0] if nanos.set else 0
        if whole < -LAST_SECOND or whole > LAST_SECOND:
            return False
        # C rounds to zero, and Python down.
        self.value[0] = <uint64_t>(whole * 1000000 + (part - 999 if part < 0 else part) / 1000)
        return True

    cdef int put(self) except -1:
        """Keep the value that was read."""
        if self.texts is not None:
            self.texts.put(self.text, self.size)
        elif self.kind != MESSAGE:
            self.numbers.put(<const uint8_t *>self.value, self.width)
        self.nulls.put(False)
        self.count += 1
        return 0

    cdef int finish(self) except -1:
        """Keep what a message has of this field, now that all of the message was read."""
        if self.kind == LIST or self.kind == MAP:
            return self.put_end(False)
        if not self.set:
            if self.null_if_unset:
                return self.put_null()
            if self.kind == MESSAGE:
                self.message.read(NULL, NULL)
            elif self.texts is not None:
                self.text = <const uint8_t *>PyBytes_AS_STRING(self.unset_text)
                self.size = PyBytes_GET_SIZE(self.unset_text)
            else:
                self.value[0] = self.unset_number
        return self.put()

    cdef int put_end(self, bint null) except -1:
        cdef Field items = self.items if self.kind == LIST else <Field>self.message.fields[0]
        self.numbers.put_int32(<int32_t>items.count)
        self.nulls.put(null)
        self.count += 1
        return 0

    cdef int put_null(self) except -1:
        if self.kind == LIST or self.kind == MAP:
            return self.put_end(True)
        if self.kind == MESSAGE:
            self.message.put_null()
        elif self.texts is not None:
            self.texts.put(NULL, 0)
        else:
            self.value[0] = 0
            self.numbers.put(<const uint8_t *>self.value, self.width)
        self.nulls.put(True)
        self.count += 1
        return 0

    cdef tuple taken(self):
        """Return the rows, those that are null, the validity or None, and then what Arrow's type has."""
        cdef tuple head = (self.count, self.nulls.count, self.nulls.validity())
        if self.kind == MESSAGE:
            return (*head, self.message.taken())
        if self.kind == LIST:
            return (*head, self.numbers, self.items.taken())
        if self.kind == MAP:
            return (*head, self.numbers, *self.message.taken())
        if self.texts is not None:
            return (*head, self.texts.offsets, self.texts.data)
        return (*head, bits_of(self.numbers, True) if self.kind == BOOL else self.numbers)


cdef class Message:
    """The fields of a message, of which those that are kept have a value more for each that is read."""

    # In the order of the columns, and by their numbers.
    cdef list fields
    cdef list ordered
    # The number of the field of each ``oneof`` that is set, 0 for none.
    cdef Memory chosen
    # Whether it is the key and the value of an item of a map: Google's library takes one with other fields for unknown.
    cdef bint is_entry

    def __cinit__(self, tuple plan):
        fields, oneofs = plan
        self.fields = [Field(each) for each in fields]
        self.ordered = sorted(self.fields, key=number_of)
        self.chosen = Memory()
        for _ in range(oneofs):
            self.chosen.put_int32(0)

    cdef bint read(self, const uint8_t *at, const uint8_t *end) except -1:
        """Read the message that these bytes are; False if something is uncommon."""
        cdef Py_ssize_t place
        cdef Py_ssize_t likely = 0
        cdef const uint8_t *after
        cdef uint64_t tag
        cdef Field field
        for place in range(len(self.ordered)):
            (<Field>self.ordered[place]).set = False
        memset(self.chosen.start, 0, self.chosen.used)
        while at < end:
            after = read_uint64(at, end, &tag)
            if after == NULL or after - at > MAX_TAG_BYTES or tag > 0xFFFFFFFF or tag < 8:
                return False
            place = self.place_of(<uint32_t>tag >> 3, likely)
            if place < 0:
                if self.is_entry:
                    return False
                at = skipped(after, end, tag & 7)
            else:
                # The next one has the next number, mostly.
                likely = place + 1
                field = <Field>self.ordered[place]
                if field.oneof >= 0 and not self.choose(field):
                    return False
                at = field.read(after, end, tag & 7)
            if at == NULL:
                return False
        for place in range(len(self.fields)):
            if (<Field>self.fields[place]).kept:
                (<Field>self.fields[place]).finish()
        return True

    cdef Py_ssize_t place_of(self, uint32_t number, Py_ssize_t likely) noexcept:
        """Return the place in ``ordered`` of the field with this number, -1 if there is none."""
        cdef Py_ssize_t first = 0
        cdef Py_ssize_t end = len(self.ordered)
        cdef Py_ssize_t middle
        if likely < end and (<Field>self.ordered[likely]).number == number:
            return likely
        while first < end:
            middle = (first + end) >> 1
            if (<Field>self.ordered[middle]).number < number:
                first = middle + 1
            else:
                end = middle
        if first < len(self.ordered) and (<Field>self.ordered[first]).number == number:
            return first
        return -1

    cdef bint choose(self, Field field) noexcept:
        """Whether a field is the only one of its ``oneof`` so far: another one would be unset by it."""
        cdef uint32_t *chosen = <uint32_t *>self.chosen.start + field.oneof
        if chosen[0] != 0 and chosen[0] != field.number:
            return False
        chosen[0] = field.number
        return True

    cdef int put_null(self) except -1:
        cdef Py_ssize_t place
        for place in range(len(self.fields)):
            if (<Field>self.fields[place]).kept:
                (<Field>self.fields[place]).put_null()
        return 0

    cdef list taken(self):
        return [(<Field>field).taken() for field in self.fields if (<Field>field).kept]


def number_of(Field field):
    return field.number


cdef inline const uint8_t *read_size(const uint8_t *at, const uint8_t *end, uint64_t *size) noexcept nogil:
    """Read the bytes that follow; NULL if there are less."""
    cdef const uint8_t *after = read_uint64(at, end, size)
    if after == NULL or after - at > MAX_TAG_BYTES or size[0] > <uint64_t>(end - after):
        return NULL
    return after


cdef const uint8_t *skipped(const uint8_t *at, const uint8_t *end, int wire) noexcept nogil:
    """Return where a value that nobody knows ends, NULL for a group."""
    cdef uint64_t size
    if wire == VARINT:
        return read_uint64(at, end, &size)
    if wire == SIZED:
        at = read_size(at, end, &size)
    elif wire == IN_4_BYTES or wire == IN_8_BYTES:
        size = 4 if wire == IN_4_BYTES else 8
        if size > <uint64_t>(end - at):
            return NULL
    else:
        return NULL
    return NULL if at == NULL else at + size


def decode(tuple plan, Py_ssize_t first, Py_ssize_t count, object validity, object offsets, object data):
    """Decode messages of a plan; return what :meth:`Field.taken` gives of the fields that are kept, in their order.

    The values are as in :class:`Values`. Returns None if something about a value is uncommon or wrong.
    """
    cdef Message message = Message(plan)
    cdef Values values = Values(first, count, validity, offsets, data)
    cdef Py_ssize_t row
    for row in range(count):
        if not values.find(row):
            message.put_null()
        elif not message.read(values.start, values.end):
            return None
    return message.taken()
