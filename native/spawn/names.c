#include "names.h"

#include <ctype.h>
#include <stddef.h>
#include <string.h>

bool id_valid(const char *id)
{
	size_t n = strspn(id, "abcdefghijklmnopqrstuvwxyz0123456789_-");

	return n >= 1 && n <= 64 && !id[n];
}

bool hostname_valid(const char *name)
{
	size_t n = 0;

	for (; name[n]; n++)
		if (!isalnum((unsigned char)name[n]) && name[n] != '-' && name[n] != '.')
			return false;
	return n >= 1 && n <= 64;
}

static bool component_valid(const char *name, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (!isalnum((unsigned char)name[i]) && (!name[i] || !strchr("._-", name[i])))
			return false;
	return n >= 1 && n <= NODE_COMPONENT_MAX && name[0] != '.';
}

bool node_valid(const char *name)
{
	size_t n = strcspn(name, "/");

	if (!component_valid(name, n))
		return false;
	return !name[n] || component_valid(name + n + 1, strlen(name + n + 1));
}

bool path_clean(const char *path)
{
	size_t length = strnlen(path, PATH_TEXT_MAX + 1);

	if (path[0] != '/' || length < 2 || length > PATH_TEXT_MAX)
		return false;
	for (const char *at = path; at; at = strchr(at + 1, '/')) {
		size_t n = strcspn(at + 1, "/");

		if (!n || (n == 1 && at[1] == '.') || (n == 2 && at[1] == '.' && at[2] == '.'))
			return false;
	}
	return true;
}

bool path_below(const char *path, const struct roots *roots)
{
	if (!path_clean(path))
		return false;
	for (unsigned i = 0; i < roots->count; i++) {
		size_t n = strlen(roots->paths[i]);

		if (!strncmp(path, roots->paths[i], n) && path[n] == '/')
			return true;
	}
	return false;
}

bool roots_add(struct roots *roots, const char *path)
{
	if (roots->count == ROOTS_MAX || !path_clean(path))
		return false;
	roots->paths[roots->count++] = path;
	return true;
}
