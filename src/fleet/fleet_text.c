/* SPDX-License-Identifier: MIT
 *
 * What texts may be. Each of these becomes a path, an argument, a line of a unit file, a host name or an address elsewhere,
 * so that each has a validator of its own and this is the only door. The control characters are gone before.
 */
#include "fleet_int.h"

#include <arpa/inet.h>
#include <os/os.h>

#define NAME_RULE "use lower-case letters, digits, '-', '_' and '.', beginning with a letter or digit, at most 63 in all"

static bool is_lower(char c)
{
    return c >= 'a' && c <= 'z';
}

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static bool is_alnum(char c)
{
    return is_lower(c) || is_digit(c) || (c >= 'A' && c <= 'Z');
}

/* Letters, digits and what is in `more` (not empty). */
static bool all_of(struct str s, const char *more)
{
    for (size_t i = 0; i < s.len; i++)
        if (!is_alnum(s.ptr[i]) && (s.ptr[i] == '\0' || !strchr(more, s.ptr[i])))
            return false;
    return s.len > 0;
}

bool fleet_name_valid(struct str name)
{
    if (name.len == 0 || name.len > FLEET_NAME_MAX || !is_alnum(name.ptr[0]) || !all_of(name, "-_."))
        return false;
    for (size_t i = 0; i < name.len; i++)
        if (name.ptr[i] >= 'A' && name.ptr[i] <= 'Z')
            return false;
    return true;
}

/* A section's name is the part's key and r->of says which; elsewhere the label does. */
static int refuse_name(struct fleet_reader *r, const struct yaml_node *n, struct str text, const char *rule)
{
    if (!r->key)
        return fleet_refuse_at(r, fleet_key_pos_of(n), "the name of %s is not valid; %s", r->of, rule);
    return fleet_refuse(r, n, "%s is not a valid name: '%s'; %s", fleet_label(r), fleet_show(r, text), rule);
}

int fleet_check_name(struct fleet_reader *r, const struct yaml_node *n, struct str text)
{
    return fleet_name_valid(text) ? 0 : refuse_name(r, n, text, NAME_RULE);
}

/* A service's log has its name; these two are berth's own. */
int fleet_check_service_name(struct fleet_reader *r, const struct yaml_node *n, struct str text)
{
    if (str_eq_c(text, "router") || str_eq_c(text, "berth"))
        return refuse_name(r, n, text, "berth's own log has that name, choose another");
    return fleet_check_name(r, n, text);
}

/* Clients write these in "model", and they become labels of metrics and parts of log lines. */
int fleet_check_model_name(struct fleet_reader *r, const struct yaml_node *n, struct str text)
{
    if (text.len > 0 && text.len <= FLEET_MODEL_NAME_MAX && is_alnum(text.ptr[0]) && all_of(text, "-_.:/@+"))
        return 0;
    return refuse_name(r, n, text, "use letters, digits and '-_.:/@+', beginning with a letter or digit, at most 255 in all");
}

/* A target that began with '-' would be an option of ssh. */
int fleet_check_ssh(struct fleet_reader *r, const struct yaml_node *n, struct str text)
{
    if (all_of(text, "-_.@:[]%") && text.ptr[0] != '-')
        return 0;
    return fleet_refuse(r, n, "%s must be a target such as 'user@host', not '%s'", fleet_label(r), fleet_show(r, text));
}

bool fleet_is_port(struct str text, uint16_t *ret)
{
    uint64_t port;
    if (str_to_u64(text, &port) < 0 || port < 1 || port > UINT16_MAX)
        return false;
    *ret = (uint16_t)port;
    return true;
}

bool fleet_has_bad_port(struct str url, struct str *ret)
{
    ptrdiff_t scheme = str_find(url, STR("://"));
    size_t from = scheme < 0 ? 0 : (size_t)scheme + 3, end = from, colon = 0;
    for (; end < url.len && !strchr("/?#", url.ptr[end]); end++) {
        if (url.ptr[end] == ':')
            colon = end + 1;
        else if (url.ptr[end] == '@' || url.ptr[end] == ']') /* what was before is a name, or the address itself */
            colon = 0;
    }
    uint16_t port;
    *ret = (struct str){url.ptr + colon, end - colon};
    return colon && !fleet_is_port(*ret, &port);
}

int fleet_check_port(struct fleet_reader *r, const struct yaml_node *n, struct str url)
{
    struct str port;
    return fleet_has_bad_port(url, &port) ? fleet_refuse(r, n, "%s has the port '%s'; " FLEET_PORTS, fleet_label(r), fleet_show(r, port)) : 0;
}

bool fleet_is_ip(struct str text)
{
    char s[INET6_ADDRSTRLEN];
    if (text.len == 0 || text.len >= sizeof s)
        return false;
    memcpy(s, text.ptr, text.len);
    s[text.len] = '\0';
    struct in6_addr a;
    return inet_pton(AF_INET, s, &a) == 1 || inet_pton(AF_INET6, s, &a) == 1;
}

/* Labels of letters, digits, '-' and '_', none beginning or ending with '-'. */
static bool is_host_name(struct str text)
{
    if (text.len == 0 || text.len > 253)
        return false;
    while (text.ptr) {
        struct str label = str_split(&text, '.');
        if (label.len > 63 || !all_of(label, "-_") || label.ptr[0] == '-' || label.ptr[label.len - 1] == '-')
            return false;
    }
    return true;
}

int fleet_check_address(struct fleet_reader *r, const struct yaml_node *n, struct str text)
{
    bool digits = all_of(text, ".") && is_digit(text.ptr[text.len - 1]); /* looks like IPv4: then it must be that */
    if (fleet_is_ip(text) || (!digits && is_host_name(text)))
        return 0;
    return fleet_refuse(r, n, "%s must be a host name or an IP address without a port, not '%s'", fleet_label(r), fleet_show(r, text));
}

/* Device names go into comma lists of the engine. */
int fleet_check_device(struct fleet_reader *r, const struct yaml_node *n, struct str text)
{
    if (text.len <= FLEET_NAME_MAX && all_of(text, "-_.:[]") && is_alnum(text.ptr[0]))
        return 0;
    return fleet_refuse(r, n, "%s must be the engine's name of a device, such as 'ROCm0' or 'CUDA1', not '%s'", fleet_label(r),
                        fleet_show(r, text));
}

/* As sysfs writes it: 0000:03:00.0. */
static bool is_pci(struct str s)
{
    static const char form[] = "xxxx:xx:xx.o";
    if (s.len != sizeof form - 1)
        return false;
    for (size_t i = 0; i < s.len; i++) {
        char c = s.ptr[i];
        bool ok = form[i] == 'x'   ? is_digit(c) || (c >= 'a' && c <= 'f')
                  : form[i] == 'o' ? c >= '0' && c <= '7'
                                   : c == form[i];
        if (!ok)
            return false;
    }
    return true;
}

int fleet_check_pci(struct fleet_reader *r, const struct yaml_node *n, struct str text)
{
    if (is_pci(text))
        return 0;
    return fleet_refuse(r, n, "%s must be an address such as \"0000:03:00.0\" in lower case, not '%s'", fleet_label(r), fleet_show(r, text));
}

int fleet_check_engine(struct fleet_reader *r, const struct yaml_node *n, struct str text)
{
    base_autobuf struct buf all = BUF_INIT(ERR_TEXT_MAX);
    for (size_t i = 0; i < r->opt->n_engines; i++) {
        if (str_eq_c(text, r->opt->engines[i]))
            return 0;
        buf_addf(&all, "%s%s", i ? ", " : "", r->opt->engines[i]);
    }
    if (buf_status(&all) < 0)
        return err_nomem(r->err);
    const char *near = str_nearest(text, r->opt->engines, r->opt->n_engines);
    if (near)
        return fleet_refuse(r, n, "%s is '%s', which is no engine; did you mean '%s'?", fleet_label(r), fleet_show(r, text), near);
    return fleet_refuse(r, n, "%s is '%s', which is no engine; the engines are %s", fleet_label(r), fleet_show(r, text),
                        all.len ? all.ptr : "none");
}

/* Debian Policy 5.6.1, with the longest name bounded: it becomes an argument of apt. */
int fleet_check_package(struct fleet_reader *r, const struct yaml_node *n, struct str text)
{
    bool ok = text.len >= 2 && text.len <= 128 && (is_lower(text.ptr[0]) || is_digit(text.ptr[0]));
    for (size_t i = 0; ok && i < text.len; i++)
        ok = is_lower(text.ptr[i]) || is_digit(text.ptr[i]) || (text.ptr[i] != '\0' && strchr("+-.", text.ptr[i]));
    if (ok)
        return 0;
    return fleet_refuse(r, n, "%s must be the name of a Debian package, not '%s'", fleet_label(r), fleet_show(r, text));
}

int fleet_check_file(struct fleet_reader *r, const struct yaml_node *n, struct str text)
{
    if (os_relpath_valid(text) && text.ptr[0] != '-')
        return 0;
    return fleet_refuse(r, n, "%s must be a path inside the model's source, without '..' and not beginning with '/' or '-', not '%s'",
                        fleet_label(r), fleet_show(r, text));
}

bool fleet_is_loopback(struct str text)
{
    return str_starts(text, STR("127.")) || str_eq_c(text, "::1");
}

int fleet_check_bind(struct fleet_reader *r, const struct yaml_node *n, struct str text)
{
    if (!fleet_is_ip(text))
        return fleet_refuse(r, n, "%s must be an IP address such as '127.0.0.1', not '%s'", fleet_label(r), fleet_show(r, text));
    return 0;
}

int fleet_check_url_path(struct fleet_reader *r, const struct yaml_node *n, struct str text)
{
    bool ok = text.len > 0 && text.ptr[0] == '/';
    for (size_t i = 0; ok && i < text.len; i++) {
        unsigned char c = (unsigned char)text.ptr[i];
        ok = c > 0x20 && c < 0x7F && c != '#';
    }
    if (ok)
        return 0;
    return fleet_refuse(r, n, "%s must be a path such as '/health', not '%s'", fleet_label(r), fleet_show(r, text));
}

int fleet_check_header(struct fleet_reader *r, const struct yaml_node *n, struct str text)
{
    if (text.len > 0 && text.len <= FLEET_NAME_MAX && all_of(text, "-_.!#$%&'*+^`|~"))
        return 0;
    return fleet_refuse(r, n, "%s must be the name of a header field such as 'x-session-id', not '%s'", fleet_label(r), fleet_show(r, text));
}

int fleet_check_word(struct fleet_reader *r, const struct yaml_node *n, struct str text)
{
    if (text.len <= FLEET_NAME_MAX && all_of(text, "-_.") && text.ptr[0] != '-')
        return 0;
    return fleet_refuse(r, n, "%s must be one word, not '%s'", fleet_label(r), fleet_show(r, text));
}
