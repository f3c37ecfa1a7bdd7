/* Parts of a command's child. What fails is told by child_fail, and the child ends. */
#ifndef SKERRY_CHILD_PARTS_H
#define SKERRY_CHILD_PARTS_H

#include "init.h"

/* child.c: these bytes as a sealed file, read from its beginning; or a negative errno. */
int script_file(const struct field *bytes);

void class_set(void);
void limits_set(const struct launch *l);
void terminal_open(const struct launch *l);
void stdio_set(const struct launch *l);
void number_give(const struct launch *l, int fd, int number);
void session_give(const struct launch *l);

#endif
