/* SPDX-License-Identifier: MIT
 *
 * YAML: whatever is accepted is a tree with sound links and positions inside the text; whatever is refused says where.
 */
#include <conf/conf.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static volatile size_t seen;

static void walk(const struct yaml_node *n, size_t size, unsigned depth)
{
    if (depth > CONF_DEPTH_MAX || n->line < 1 || n->column < 1 || n->line > size + 1 || n->column > size + 1)
        abort();
    if (n->kind == YAML_SCALAR && n->first)
        abort();
    for (size_t i = 0; i < n->text.len; i++)
        seen += (size_t)n->text.ptr[i];
    for (const struct yaml_node *c = n->first; c; c = c->next) {
        if ((n->kind == YAML_MAP) != (c->key.len > 0))
            abort();
        seen += yaml_is_null(c);
        walk(c, size, depth + 1);
    }
    if (n->kind == YAML_MAP && n->first) {
        char *key = str_dup(n->first->key);
        if (!key || yaml_get(n, key) != n->first)
            abort();
        free(key);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct yaml *y = NULL;
    struct err err = {0};
    int rc = yaml_parse((struct str){(const char *)data, size}, "f", &y, &err);
    if (rc < 0) {
        if (y || err.code != rc || strncmp(err.text, "f:", 2) != 0 || err.text[2] < '1' || err.text[2] > '9')
            abort();
        return 0;
    }
    walk(yaml_root(y), size, 0);
    yaml_free(y);
    return 0;
}
