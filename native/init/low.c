/* The agent's stack among its variables, on x86-64.
 *
 * The kernel puts a program's stack and its own pages for the clock (vDSO) at the far end of the address
 * space. Page tables for that are five pages of four levels beside those of the program itself; each idle
 * sandbox holds them, and each fork copies them. So the program's first instructions, before the library
 * runs, put what the kernel laid on the stack onto one that lies among the variables, all within the 2 MiB
 * of one page table; then everything far away is unmapped. The library is not told of the vDSO and asks
 * the kernel for the time.
 *
 * The place within the stack's room is random: it takes the part of the kernel's random choice of stacks. */
#include "init.h"

#ifdef SKERRY_LOW
#include <elf.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

/* The deepest stack, that of a child that looks for its user, is 16 KiB. */
enum { ROOM = 128 << 10, GUARD = 4096, PAGES_SHIFT = 15, BYTES_SHIFT = 64, AUX_MAX = 40 };

/* Program and heap lie below, stack and vDSO above; the end is that of every x86-64 address space. */
static const uintptr_t far_begin = 1ull << 32, far_end = (1ull << 47) - 4096;

static const char name[] = "skerry-init";

/* What the kernel puts at the stack pointer of a program with one argument and no environment. */
struct initial {
	uintptr_t argc;
	const char *argv[2], *envp[1];
	Elf64_auxv_t aux[];
};

/* On top of the low stack. */
struct moved {
	struct initial initial;
	Elf64_auxv_t aux[AUX_MAX];
	uint8_t random[16]; /* AT_RANDOM's: the library makes its canary of the first half */
	char name[sizeof(name)];
};

static uint8_t stack[ROOM] __attribute__((aligned(GUARD)));
static struct moved *moved;

uintptr_t low_begin(const struct initial *old) __attribute__((no_stack_protector, used));

__asm__(".pushsection .text\n"
	".globl low_entry\n"
	".type low_entry, @function\n"
	"low_entry:\n"
	"	xorl %ebp, %ebp\n"
	"	movq %rsp, %rdi\n"
	"	andq $-16, %rsp\n"
	"	call low_begin\n"
	"	movq %rax, %rsp\n"
	"	jmp _start\n"
	".size low_entry, . - low_entry\n"
	".popsection\n");

static size_t aux_count(const Elf64_auxv_t *aux)
{
	size_t n = 0;

	while (aux[n].a_type != AT_NULL)
		n++;
	return n + 1;
}

static const uint8_t *random_of(const Elf64_auxv_t *aux)
{
	while (aux->a_type != AT_NULL && aux->a_type != AT_RANDOM)
		aux++;
	return aux->a_type == AT_NULL ? NULL : (const uint8_t *)aux->a_un.a_val;
}

/* Before the library has begun: no thread pointer, hence no canary. Returns the stack pointer to begin
 * with, `old` if this is not the agent. */
uintptr_t low_begin(const struct initial *old)
{
	const uint8_t *random;
	uintptr_t top = (uintptr_t)stack + ROOM - sizeof(*moved);

	if (old->argc != 1 || strcmp(old->argv[0], name) || old->envp[0])
		return (uintptr_t)old;
	random = random_of(old->aux);
	if (!random || aux_count(old->aux) > AUX_MAX)
		return (uintptr_t)old;
	/* Whole pages, and less than one: so that what is used of it does not lie on more of them. */
	top -= (uintptr_t)(random[14] & PAGES_SHIFT) * GUARD + (uintptr_t)(random[15] % BYTES_SHIFT) * 16;
	moved = (struct moved *)(top & ~(uintptr_t)15);
	memcpy(moved->random, random, sizeof(moved->random));
	memcpy(moved->name, name, sizeof(name));
	moved->initial.argc = 1;
	moved->initial.argv[0] = moved->name;
	memcpy(moved->initial.aux, old->aux, aux_count(old->aux) * sizeof(*old->aux));
	for (Elf64_auxv_t *a = moved->initial.aux; a->a_type != AT_NULL; a++) {
		if (a->a_type == AT_RANDOM)
			a->a_un.a_val = (uintptr_t)moved->random;
		else if (a->a_type == AT_SYSINFO_EHDR || a->a_type == AT_EXECFN ||
			 a->a_type == AT_PLATFORM || a->a_type == AT_BASE_PLATFORM)
			a->a_type = AT_IGNORE; /* what they point to will be gone */
	}
	return (uintptr_t)&moved->initial;
}

void low_settle(void)
{
	extern char __executable_start[], etext[], edata[];
	uintptr_t heap = (uintptr_t)syscall(SYS_brk, 0);
	struct prctl_mm_map map = {
		.start_code = (uintptr_t)__executable_start, .end_code = (uintptr_t)etext,
		.start_data = (uintptr_t)etext, .end_data = (uintptr_t)edata,
		.start_brk = heap, .brk = heap, .exe_fd = (uint32_t)-1,
	};

	if (!moved)
		return;
	map.start_stack = (uintptr_t)moved;
	map.arg_start = (uintptr_t)moved->name;
	map.arg_end = map.env_start = map.env_end = map.arg_start + sizeof(name);
	/* Or the process would have no name in /proc/1/cmdline, which is read from the old stack. */
	if (prctl(PR_SET_MM, PR_SET_MM_MAP, &map, sizeof(map), 0))
		return;
	mprotect(stack, GUARD, PROT_NONE);
	munmap((void *)far_begin, far_end - far_begin); /* a kernel that seals its pages refuses: fine */
}
#else
void low_settle(void)
{
}
#endif
