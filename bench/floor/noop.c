/* The command of every life that is measured: it does nothing, and needs no loader. */
int main(void) { return 0; }
