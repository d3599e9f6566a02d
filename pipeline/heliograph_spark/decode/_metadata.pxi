"""Reads the metadata of entries and messages where nothing about it is uncommon. Included in ``_batch``."""

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


cdef struct Whole:
    # The metadata of an entry; ``single`` has what messages of a batch have, too.
    Single single
    Span producer
    Span schema_version
    uint64_t publish_time
    uint64_t compression
    int32_t messages
    bint batch


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


cdef inline void clear(Single *single) noexcept nogil:
    single.key.data = single.ordering_key.data = NULL
    single.key.size = single.ordering_key.size = 0
    single.properties = 0
    single.payload_size = -1
    single.event_time = single.sequence_id = 0
    single.has_sequence_id = single.compacted_out = single.base64 = single.null_value = single.null_key = False


cdef inline const uint8_t *read_property(const uint8_t *at, const uint8_t *end, Single *single) noexcept nogil:
    """Read one property more; NULL if it is uncommon, or the name of an earlier one."""
    cdef Span pair
    cdef int other
    at = read_span(at, end, &pair)
    if at == NULL or single.properties == MAX_PROPERTIES:
        return NULL
    if not read_pair(pair, &single.names[single.properties], &single.texts[single.properties]):
        return NULL
    for other in range(single.properties):
        if same(single.names[other], single.names[single.properties]):
            return NULL
    single.properties += 1
    return at


cdef bint read_single(const uint8_t *at, const uint8_t *end, Single *single) noexcept nogil:
    """Return whether the metadata is complete and has nothing uncommon; strings are not looked at."""
    cdef uint64_t number
    cdef uint8_t tag
    clear(single)
    while at < end:
        tag = at[0]
        at += 1
        if tag == 0x0A:
            at = read_property(at, end, single)
            if at == NULL:
                return False
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


cdef bint read_whole(const uint8_t *at, const uint8_t *end, Whole *whole) noexcept nogil:
    """Return whether the metadata of an entry has nothing uncommon; strings are not looked at."""
    cdef const uint8_t *start
    cdef uint64_t number
    cdef uint64_t tag
    clear(&whole.single)
    whole.producer.data = whole.schema_version.data = NULL
    whole.producer.size = whole.schema_version.size = 0
    whole.publish_time = whole.compression = 0
    whole.messages = 1
    whole.batch = False
    while at < end:
        start = at
        at = read_varint(at, end, &tag)
        # No field's tag is longer, and protobuf refuses some that are.
        if at == NULL or at - start > 2:
            return False
        if tag == 1 << 3 | 2:
            if whole.producer.data != NULL:
                return False
            at = read_span(at, end, &whole.producer)
        elif tag == 4 << 3 | 2:
            at = read_property(at, end, &whole.single)
        elif tag == 6 << 3 | 2:
            if whole.single.key.data != NULL:
                return False
            at = read_span(at, end, &whole.single.key)
        elif tag == 16 << 3 | 2:
            at = read_span(at, end, &whole.schema_version)
        elif tag == 18 << 3 | 2:
            at = read_span(at, end, &whole.single.ordering_key)
        else:
            at = read_varint(at, end, &number)
            if at == NULL:
                return False
            if tag == 2 << 3:
                whole.single.sequence_id = number
            elif tag == 3 << 3:
                whole.publish_time = number
            elif tag == 8 << 3:
                whole.compression = number
            elif tag == 11 << 3:
                if not 0 < number <= 0x7FFFFFFF:
                    return False
                whole.messages = <int32_t>number
                whole.batch = True
            elif tag == 12 << 3:
                whole.single.event_time = number
            elif tag == 17 << 3:
                whole.single.base64 = number != 0
            elif tag == 25 << 3:
                whole.single.null_value = number != 0
            elif tag == 30 << 3:
                whole.single.null_key = number != 0
            # The size before compression, the time of delivery, and the last number of a batch: no column has them.
            elif tag != 9 << 3 and tag != 19 << 3 and tag != 24 << 3:
                return False
        if at == NULL:
            return False
    return whole.producer.data != NULL


cdef inline bint same(Span one, Span other) noexcept nogil:
    return one.size == other.size and memcmp(one.data, other.data, one.size) == 0


cdef inline bint is_utf8(Span span) noexcept:
    return is_text(span.data, span.size)


cdef bint are_utf8(Single *single) noexcept:
    """Return whether the key and the properties are text."""
    cdef int each
    if single.key.data != NULL and not is_utf8(single.key):
        return False
    for each in range(single.properties):
        if not is_utf8(single.names[each]) or not is_utf8(single.texts[each]):
            return False
    return True
