/* SPDX-License-Identifier: MIT
 *
 * Small files of sysfs and procfs, below a root that may be a recorded tree. A file that is not there is no error anywhere: drivers differ in what they tell.
 */
#include "hw_int.h"

#include <string.h>
#include <unistd.h>

static bool read_at(const struct hw_reader *r, struct buf *out, const char *fmt, va_list ap) BASE_PRINTF(3, 0);
static bool read_at(const struct hw_reader *r, struct buf *out, const char *fmt, va_list ap)
{
    char path[HW_PATH_MAX];
    int n = vsnprintf(path, sizeof path, fmt, ap);
    if (n < 0 || (size_t)n >= sizeof path)
        return false;
    return os_read_file(r->root, path, out, NULL) == 0;
}

bool text_there(const struct hw_reader *r, const char *fmt, ...)
{
    char path[HW_PATH_MAX];
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(path, sizeof path, fmt, ap);
    va_end(ap);
    return n >= 0 && (size_t)n < sizeof path && faccessat(r->root, path, F_OK, 0) == 0;
}

bool text_read(const struct hw_reader *r, struct buf *out, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    bool ok = read_at(r, out, fmt, ap);
    va_end(ap);
    return ok;
}

bool text_line(const struct hw_reader *r, char *out, size_t size, const char *fmt, ...)
{
    base_autobuf struct buf b = BUF_INIT(HW_FILE_MAX);
    base_autobuf struct buf shown = BUF_INIT(HW_FILE_MAX * 4);
    va_list ap;
    va_start(ap, fmt);
    bool ok = read_at(r, &b, fmt, ap);
    va_end(ap);
    if (!ok)
        return false;
    buf_add_printable(&shown, str_trim(buf_str(&b)), size - 1);
    if (buf_status(&shown) < 0 || shown.len == 0)
        return false;
    snprintf(out, size, "%s", shown.ptr);
    return true;
}

bool text_number(struct str s, uint64_t *ret)
{
    if (!str_starts(s, STR("0x")))
        return str_to_u64(s, ret) == 0;
    uint64_t v = 0;
    if (s.len < 3 || s.len > 18)
        return false;
    for (size_t i = 2; i < s.len; i++) {
        const char *digits = "0123456789abcdef", *at = s.ptr[i] ? strchr(digits, s.ptr[i] | 0x20) : NULL;
        if (!at)
            return false;
        v = v << 4 | (uint64_t)(at - digits);
    }
    *ret = v;
    return true;
}

bool text_u64(const struct hw_reader *r, uint64_t *ret, const char *fmt, ...)
{
    base_autobuf struct buf b = BUF_INIT(HW_FILE_MAX);
    va_list ap;
    va_start(ap, fmt);
    bool ok = read_at(r, &b, fmt, ap);
    va_end(ap);
    return ok && text_number(str_trim(buf_str(&b)), ret);
}

bool text_field(struct str text, const char *key, uint64_t *ret)
{
    size_t len = strlen(key);
    while (text.ptr) {
        struct str line = str_split(&text, '\n');
        if (!str_starts(line, str_of(key)) || line.len == len)
            continue;
        struct str rest = {line.ptr + len, line.len - len};
        if (rest.ptr[0] == ':')
            rest = (struct str){rest.ptr + 1, rest.len - 1};
        else if (rest.ptr[0] != ' ' && rest.ptr[0] != '\t')
            continue;
        rest = str_trim(rest);
        return text_number(str_split(&rest, ' '), ret);
    }
    return false;
}

bool pci_address(struct str s)
{
    static const char form[] = "xxxx:xx:xx.d";
    if (s.len != sizeof form - 1)
        return false;
    for (size_t i = 0; i < s.len; i++) {
        char c = s.ptr[i];
        bool digit = c >= '0' && c <= '9', hex = digit || (c >= 'a' && c <= 'f');
        if (form[i] == 'x' ? !hex : form[i] == 'd' ? !digit : c != form[i])
            return false;
    }
    return true;
}
