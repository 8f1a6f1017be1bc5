/* SPDX-License-Identifier: MIT
 *
 * Names of an archive's entries. One that is taken is a path that stays below its folder, and taking it again changes nothing.
 */
#include <store/store_int.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char out[STORE_PATH_MAX], again[STORE_PATH_MAX];
    if (archive_name((struct str){(const char *)data, size}, out) != 1)
        return 0;
    struct str rest = str_of(out);
    if (out[0] == '/' || !os_relpath_valid(rest) || archive_name(rest, again) != 1 || strcmp(out, again) != 0)
        abort();
    while (rest.ptr)
        if (str_eq_c(str_split(&rest, '/'), ".."))
            abort();
    return 0;
}
