/* SPDX-License-Identifier: MIT
 *
 * What apt-get prints: the list of packages and the machine's mirror. A name that is taken must be safe as the name of a file.
 */
#include <store/store_int.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct str text = {(const char *)data, size};
    struct arena *a = arena_new(16u << 20);
    struct apt_list list;
    struct err err;
    if (apt_uris_parse(text, a, &list, &err) == 0)
        for (size_t i = 0; i < list.n; i++)
            if (!os_name_valid(str_of(list.debs[i].file)) || !manifest_is_sha256(str_of(list.debs[i].sha256)))
                abort();
    const char *mirror = apt_mirror_parse(text, a);
    if (mirror && strncmp(mirror, "http", 4) != 0)
        abort();
    arena_free(a);
    return 0;
}
