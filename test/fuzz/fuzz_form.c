/* SPDX-License-Identifier: MIT
 *
 * The form reader over any bytes: the first line is the content type, the rest the body. A value that is found lies in the body between a head and a delimiter.
 */
#include <http/http.h>

#include <assert.h>
#include <errno.h>
#include <stdint.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct str body = {(const char *)data, size}, type = str_split(&body, '\n');
    size_t off = 0, len = 0;
    if (!body.ptr)
        return 0;
    int rc = http_form_find(type, body, "model", &off, &len);
    assert(rc == 0 || rc == -ENOENT || rc == -EBADMSG);
    if (rc == 0) {
        assert(off >= 4 && off + len + 4 <= body.len);
        assert(memcmp(body.ptr + off + len, "\r\n--", 4) == 0 && memcmp(body.ptr + off - 2, "\r\n", 2) == 0);
        assert(http_form_is(type));
    }
    return 0;
}
