/* SPDX-License-Identifier: MIT
 *
 * `podman info --format json`: whatever it is, texts end and a version is there when it was understood.
 */
#include <assert.h>
#include <doctor/doctor_int.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct podman_facts f;
    if (podman_parse((struct str){(const char *)data, size}, &f, NULL) < 0)
        return 0;
    assert(*f.version && memchr(f.version, 0, sizeof f.version) && memchr(f.cgroups, 0, sizeof f.cgroups) && memchr(f.manager, 0, sizeof f.manager));
    assert(memchr(f.driver, 0, sizeof f.driver) && memchr(f.runtime, 0, sizeof f.runtime));
    return 0;
}
