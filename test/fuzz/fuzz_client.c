/* SPDX-License-Identifier: MIT
 *
 * Files of clients: the first byte chooses the format. What is read keeps its bounds, and what is written of it can be read again.
 */
#include <client/client.h>

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool ok)
{
    if (!ok)
        abort();
}

/* A file made of the claims says the same names. */
static void write_again(enum fleet_format format, const struct client_claim *c)
{
    char name[64];
    snprintf(name, sizeof name, "%.*s", (int)(c->name.len < 60 ? c->name.len : 60), c->name.ptr);
    if (!str_is_utf8(str_of(name)) || !name[0])
        return;
    const struct client_model m = {.name = name, .window = 4096, .output = 1024, .image = c->image};
    const struct client_plan p = {.fleet = "f", .url = "http://127.0.0.1:1/v1", .compact = 70, .models = &m, .n_models = 1};
    base_autobuf struct buf out = BUF_INIT(CLIENT_TEXT_MAX);
    struct arena *a = arena_new(1 << 22);
    struct client_claim *again = NULL;
    size_t n = 0;
    struct err err;
    require(a && client_render(format, &p, &out, &err) == 0);
    require(client_read(format, buf_str(&out), a, &again, &n, &err) == 0 && n == 1);
    require(again[0].window == 4096 && again[0].output == 1024 && str_eq_c(again[0].name, name));
    arena_free(a);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0)
        return 0;
    enum fleet_format format = (enum fleet_format)(data[0] % FLEET_FORMATS);
    struct arena *a = arena_new(16 << 20);
    struct client_claim *claims = NULL;
    size_t n = 0;
    struct err err = {0};
    require(a != NULL);
    int r = client_read(format, (struct str){(const char *)data + 1, size - 1}, a, &claims, &n, &err);
    if (r < 0)
        require(err.text[0] != 0);
    for (size_t i = 0; r == 0 && i < n; i++) {
        require(claims[i].n_efforts == 0 || claims[i].efforts);
        require(i < CLIENT_MODELS_MAX);
    }
    if (r == 0 && n)
        write_again(format, &claims[0]);
    arena_free(a);
    return 0;
}
