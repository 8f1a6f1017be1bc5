/* SPDX-License-Identifier: MIT
 *
 * The reader of fleet.lock. Whatever it takes has names, digests and paths that may be used.
 */
#include <fleet/fleet.h>
#include <os/os.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fleet_lock *l;
    struct err err;
    if (fleet_lock_parse((struct str){(const char *)data, size}, "f.lock", &l, &err) < 0)
        return 0;
    for (size_t i = 0; i < l->n_models; i++) {
        const struct fleet_lock_model *m = &l->models[i];
        if (!fleet_name_valid(str_of(m->name)) || fleet_lock_find_model(l, m->name) != m || (m->commit && strlen(m->commit) != 40))
            abort();
        for (size_t k = 0; k < m->n_files; k++) {
            const struct fleet_lock_file *f = &m->files[k];
            if (!os_relpath_valid(str_of(f->path)) || fleet_lock_find_file(m, f->path) != f || strlen(f->sha256 ? f->sha256 : f->git_sha1) != (f->sha256 ? 64u : 40u))
                abort();
        }
    }
    fleet_lock_free(l);
    return 0;
}
