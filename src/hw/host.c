/* SPDX-License-Identifier: MIT
 *
 * The machine itself: RAM from /proc/meminfo, CPUs from /proc/stat, their kind and their instruction sets from /proc/cpuinfo. The instruction sets decide which weights the engine repacks on the CPU.
 */
#include "hw_int.h"

#include <errno.h>
#include <string.h>

#define CORES_MAX 2048

int host_memory(const struct hw_reader *r, struct hw_host *h, struct err *err)
{
    base_autobuf struct buf b = BUF_INIT(HW_FILE_MAX);
    if (!text_read(r, &b, "proc/meminfo"))
        return err_set(err, -ENOENT, "cannot read /proc/meminfo: without it this machine's memory is not known");
    const struct {
        const char *key;
        uint64_t *ret;
    } fields[] = {{"MemTotal", &h->total_bytes}, {"MemAvailable", &h->available_bytes}, {"MemFree", &h->free_bytes}, {"SwapTotal", &h->swap_total_bytes}, {"SwapFree", &h->swap_free_bytes}};
    for (size_t i = 0; i < BASE_COUNT(fields); i++) {
        uint64_t kib = 0, bytes = 0;
        *fields[i].ret = text_field(buf_str(&b), fields[i].key, &kib) && size_mul(kib, 1024, &bytes) ? bytes : 0;
    }
    return h->total_bytes ? 0 : err_set(err, -EBADMSG, "/proc/meminfo tells no MemTotal");
}

static unsigned count_threads(const struct hw_reader *r)
{
    base_autobuf struct buf b = BUF_INIT(HW_CPUINFO_MAX);
    unsigned n = 0;
    if (!text_read(r, &b, "proc/stat"))
        return 0;
    struct str rest = buf_str(&b);
    while (rest.ptr) {
        struct str line = str_split(&rest, '\n');
        if (!str_starts(line, STR("cpu")))
            break; /* CPUs come first */
        n += line.len > 3 && line.ptr[3] >= '0' && line.ptr[3] <= '9';
    }
    return n;
}

static bool has_flag(struct str flags, const char *name)
{
    while (flags.ptr)
        if (str_eq_c(str_split(&flags, ' '), name))
            return true;
    return false;
}

static void take_flags(struct hw_host *h, struct str flags)
{
    h->avx2 = has_flag(flags, "avx2");
    h->fma = has_flag(flags, "fma");
    h->f16c = has_flag(flags, "f16c");
    h->avx512 = has_flag(flags, "avx512f") && has_flag(flags, "avx512bw") && has_flag(flags, "avx512vl") && has_flag(flags, "avx512dq");
}

/* The value of "key\t: value". */
static bool value_of(struct str line, const char *key, struct str *ret)
{
    ptrdiff_t colon = str_find_char(line, ':');
    if (colon < 0 || !str_eq_c(str_trim((struct str){line.ptr, (size_t)colon}), key))
        return false;
    *ret = str_trim((struct str){line.ptr + colon + 1, line.len - (size_t)colon - 1});
    return true;
}

struct cores {
    uint64_t ids[CORES_MAX];
    unsigned n;
};

static void count_core(struct cores *c, uint64_t package, uint64_t core)
{
    uint64_t id = package << 32 | (core & UINT32_MAX);
    for (unsigned i = c->n; i > 0; i--) /* siblings are near */
        if (c->ids[i - 1] == id)
            return;
    if (c->n < CORES_MAX)
        c->ids[c->n++] = id;
}

static void read_cpuinfo(const struct hw_reader *r, struct hw_host *h)
{
    base_autobuf struct buf b = BUF_INIT(HW_CPUINFO_MAX);
    struct cores cores = {.n = 0};
    uint64_t package = 0, core = 0;
    bool flags = false;
    if (!text_read(r, &b, "proc/cpuinfo"))
        return;
    struct str rest = buf_str(&b), v;
    while (rest.ptr) {
        struct str line = str_split(&rest, '\n');
        if (!*h->cpu && value_of(line, "model name", &v)) {
            base_autobuf struct buf shown = BUF_INIT((size_t)HW_TEXT * 4);
            buf_add_printable(&shown, v, sizeof h->cpu - 1);
            if (buf_status(&shown) == 0 && shown.len)
                snprintf(h->cpu, sizeof h->cpu, "%s", shown.ptr);
        } else if (!flags && value_of(line, "flags", &v)) {
            take_flags(h, v);
            flags = true;
        } else if (value_of(line, "physical id", &v)) {
            package = str_to_u64(v, &package) == 0 ? package : 0;
        } else if (value_of(line, "core id", &v) && str_to_u64(v, &core) == 0) {
            count_core(&cores, package, core);
        }
    }
    h->cores = cores.n;
}

int host_read(const struct hw_reader *r, struct hw_host *h, struct err *err)
{
    int result = host_memory(r, h, err);
    if (result < 0)
        return result;
    h->threads = count_threads(r);
    read_cpuinfo(r, h);
    if (h->cores == 0 || h->cores > h->threads)
        h->cores = h->threads;
    text_line(r, h->kernel, sizeof h->kernel, "proc/sys/kernel/osrelease");
    return 0;
}
