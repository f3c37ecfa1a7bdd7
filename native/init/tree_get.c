#include <errno.h>
#include "file.h"
void tree_get(char **argv){(void)argv;file_fail(ENOSYS,"words");}
void tree_put(char **argv){(void)argv;file_fail(ENOSYS,"words");}
