/* SPDX-License-Identifier: MIT
 *
 * observer: preloaded into llama-server or llama-fit-params, it tells in exact bytes what the engine allocates and what it means to allocate (law 8.5), one JSON object a line:
 *
 *   {"alloc":BYTES,"buffer":NAME,"kind":"output"|"reserve"|"other","context":ID}  a buffer was really allocated (ID: for its context, if that is known)
 *   {"enter":CLASS}                                                  a cache that is made of others is asked for its bytes; its parts follow
 *   {"part":CLASS,"buffers":{NAME:BYTES,...}}                        one cache's own buffers
 *   {"breakdown":[{"buffer":NAME,"model":N,"context":N,"compute":N},...],"context":ID,"of":MODEL}   all of a context; the parts before it are its caches, in order
 *   {"fitted":RC}                                                    the engine's own fit is over
 *
 * BERTH_OBSERVE names the file that lines are appended to, or a descriptor by its number. BERTH_OBSERVE_STOP=1 ends the process when the fit is over, before weights are read. With BERTH_OBSERVE_LAST=1 a
 * context is asked once more before it is freed, so that a server that served tells what it really had. Functions are wrapped by name; those that return a C++ map return it through a pointer that x86-64 passes as first argument,
 * and the map is walked as libstdc++ lays it out.
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#if !defined(__x86_64__)
#error "the observer knows how x86-64 returns a C++ object; other machines need their own way"
#endif

#define LINE_MAX_BYTES 16384

/* ---- saying ------------------------------------------------------------------------------------------------------ */

static int out_fd = -1;

__attribute__((constructor)) static void start(void)
{
    const char *to = getenv("BERTH_OBSERVE");
    if (to == NULL || *to == '\0')
        return;
    out_fd = strspn(to, "0123456789") == strlen(to) ? (int)(*to - '0') : open(to, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
}

struct line {
    char text[LINE_MAX_BYTES];
    size_t len;
};

static void put(struct line *l, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void put(struct line *l, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    const int n = vsnprintf(l->text + l->len, sizeof l->text - l->len, fmt, ap);
    va_end(ap);
    l->len += n < 0 ? 0 : (size_t)n;
    if (l->len >= sizeof l->text)
        abort(); /* a figure that is cut short would be a wrong one */
}

/* One write, so that lines of several threads do not mix. */
static void say(struct line *l)
{
    put(l, "\n");
    if (out_fd >= 0 && write(out_fd, l->text, l->len) != (ssize_t)l->len)
        abort();
}

/* The next definition of a wrapped function; the engine without it is another engine. */
static void *next(const char *name)
{
    void *f = dlsym(RTLD_NEXT, name);
    if (f == NULL) {
        fprintf(stderr, "observer: no function '%s' behind this one\n", name);
        abort();
    }
    return f;
}

static const char *name_of(const void *buft)
{
    static const char *(*f)(const void *);
    if (f == NULL)
        *(void **)&f = next("ggml_backend_buft_name");
    return f(buft);
}

/* ---- allocations --------------------------------------------------------------------------------------------------- */

static __thread const char *kind = "other";
static __thread const void *owner;

void *ggml_backend_buft_alloc_buffer(void *buft, size_t size);
void *ggml_backend_buft_alloc_buffer(void *buft, size_t size)
{
    static void *(*f)(void *, size_t);
    if (f == NULL)
        *(void **)&f = next("ggml_backend_buft_alloc_buffer");
    void *b = f(buft, size);
    if (b != NULL && size > 0) {
        struct line l = {.len = 0};
        put(&l, "{\"alloc\":%zu,\"buffer\":\"%s\",\"kind\":\"%s\",\"context\":\"%p\"}", size, name_of(buft), kind, owner);
        say(&l);
    }
    return b;
}

/* llama_context::output_reserve(int) */
int64_t _ZN13llama_context14output_reserveEi(void *self, int n);
int64_t _ZN13llama_context14output_reserveEi(void *self, int n)
{
    static int64_t (*f)(void *, int);
    if (f == NULL)
        *(void **)&f = next("_ZN13llama_context14output_reserveEi");
    const char *outer = kind;
    kind = "output";
    owner = self;
    const int64_t r = f(self, n);
    kind = outer;
    owner = NULL;
    return r;
}

/* llama_context::sched_reserve() */
void _ZN13llama_context13sched_reserveEv(void *self);
void _ZN13llama_context13sched_reserveEv(void *self)
{
    static void (*f)(void *);
    if (f == NULL)
        *(void **)&f = next("_ZN13llama_context13sched_reserveEv");
    const char *outer = kind;
    kind = "reserve";
    owner = self;
    f(self);
    kind = outer;
    owner = NULL;
}

/* ---- breakdowns ---------------------------------------------------------------------------------------------------- */

/* std::map as libstdc++ has it: a node is followed by key and value. */
struct node {
    int colour;
    struct node *parent, *left, *right;
    const void *key;
    size_t value[3];
};
struct map {
    char less[8];
    struct node end; /* only the links are there: left is the first node */
};

static struct node *after(struct node *n)
{
    if (n->right != NULL) {
        for (n = n->right; n->left != NULL; n = n->left)
            ;
        return n;
    }
    struct node *up = n->parent;
    while (n == up->right) {
        n = up;
        up = up->parent;
    }
    return n->right != up ? up : n;
}

static void part(const char *class, void *map)
{
    struct line l = {.len = 0};
    struct node *end = &((struct map *)map)->end;
    put(&l, "{\"part\":\"%s\",\"buffers\":{", class);
    for (struct node *n = end->left; n != end; n = after(n))
        put(&l, "%s\"%s\":%zu", n == end->left ? "" : ",", name_of(n->key), n->value[0]);
    put(&l, "}}");
    say(&l);
}

static void *ask_part(const char *class, const char *symbol, void *ret, const void *self)
{
    void *(*f)(void *, const void *);
    *(void **)&f = next(symbol);
    (void)f(ret, self);
    part(class, ret);
    return ret;
}

static void *ask_whole(const char *class, const char *symbol, void *ret, const void *self)
{
    void *(*f)(void *, const void *);
    *(void **)&f = next(symbol);
    struct line l = {.len = 0};
    put(&l, "{\"enter\":\"%s\"}", class);
    say(&l);
    return f(ret, self);
}

#define WRAP(how, class, symbol) \
    void *symbol(void *ret, const void *self); \
    void *symbol(void *ret, const void *self) { return how(class, #symbol, ret, self); }

WRAP(ask_part, "kv", _ZNK14llama_kv_cache16memory_breakdownEv)
WRAP(ask_part, "recurrent", _ZNK22llama_memory_recurrent16memory_breakdownEv)
WRAP(ask_part, "dsv4-state", _ZNK21llama_dsv4_comp_state16memory_breakdownEv)
WRAP(ask_part, "moe-cache", _ZNK15llama_moe_cache16memory_breakdownEv)
WRAP(ask_whole, "iswa", _ZNK19llama_kv_cache_iswa16memory_breakdownEv)
WRAP(ask_whole, "dsa", _ZNK18llama_kv_cache_dsa16memory_breakdownEv)
WRAP(ask_whole, "dsa-iswa", _ZNK23llama_kv_cache_dsa_iswa16memory_breakdownEv)
WRAP(ask_whole, "msa", _ZNK18llama_kv_cache_msa16memory_breakdownEv)
WRAP(ask_whole, "dsv4", _ZNK19llama_kv_cache_dsv416memory_breakdownEv)
WRAP(ask_whole, "hybrid", _ZNK19llama_memory_hybrid16memory_breakdownEv)
WRAP(ask_whole, "hybrid-idx", _ZNK23llama_memory_hybrid_idx16memory_breakdownEv)
WRAP(ask_whole, "hybrid-iswa", _ZNK24llama_memory_hybrid_iswa16memory_breakdownEv)

static const void *model_of(const void *ctx)
{
    static const void *(*f)(const void *);
    if (f == NULL)
        *(void **)&f = next("llama_get_model");
    return f(ctx);
}

/* llama_get_memory_breakdown(const llama_context *) */
void *_Z26llama_get_memory_breakdownPK13llama_context(void *ret, const void *ctx);
void *_Z26llama_get_memory_breakdownPK13llama_context(void *ret, const void *ctx)
{
    static void *(*f)(void *, const void *);
    if (f == NULL)
        *(void **)&f = next("_Z26llama_get_memory_breakdownPK13llama_context");
    (void)f(ret, ctx);
    struct line l = {.len = 0};
    struct node *end = &((struct map *)ret)->end;
    put(&l, "{\"breakdown\":[");
    for (struct node *n = end->left; n != end; n = after(n))
        put(&l, "%s{\"buffer\":\"%s\",\"model\":%zu,\"context\":%zu,\"compute\":%zu}", n == end->left ? "" : ",", name_of(n->key), n->value[0], n->value[1], n->value[2]);
    put(&l, "],\"context\":\"%p\",\"of\":\"%p\"}", ctx, model_of(ctx));
    say(&l);
    return ret;
}

void llama_free(void *ctx);
void llama_free(void *ctx)
{
    static void (*f)(void *);
    static const char *stop;
    if (f == NULL) {
        *(void **)&f = next("llama_free");
        stop = getenv("BERTH_OBSERVE_LAST");
    }
    if (ctx != NULL && stop != NULL) {
        struct map leaked; /* never destroyed: its nodes are few and the process ends */
        (void)_Z26llama_get_memory_breakdownPK13llama_context(&leaked, ctx);
    }
    f(ctx);
}

/* common_fit_params(path, model parameters, context parameters, tensor split, overrides, margins, least context, extra model, log level) */
typedef int fit_fn(const char *, void *, void *, float *, void *, size_t *, unsigned, const void *, int);
#define FIT _Z17common_fit_paramsPKcP18llama_model_paramsP20llama_context_paramsPfP32llama_model_tensor_buft_overridePmjPK22common_fit_extra_model14ggml_log_level
#define TEXT_(x) #x
#define TEXT(x) TEXT_(x)
fit_fn FIT;
int FIT(const char *path, void *model, void *context, float *split, void *overrides, size_t *margins, unsigned least, const void *extra, int level)
{
    fit_fn *f;
    *(void **)&f = next(TEXT(FIT));
    const int rc = f(path, model, context, split, overrides, margins, least, extra, level);
    struct line l = {.len = 0};
    put(&l, "{\"fitted\":%d}", rc);
    say(&l);
    if (getenv("BERTH_OBSERVE_STOP") != NULL)
        _exit(0);
    return rc;
}
