/* System calls and memory without a C library: the extension is loaded into interpreters of any, glibc or
 * musl, of any age. A call returns what the kernel does: a value, or a negative errno value. */
#ifndef SKERRY_ZYGOTE_SYS_H
#define SKERRY_ZYGOTE_SYS_H

#include <stddef.h>
#include <stdint.h>
#include <sys/syscall.h>

#if defined(__x86_64__)
static inline long sys(long number, long a, long b, long c, long d, long e)
{
	register long r10 __asm__("r10") = d;
	register long r8 __asm__("r8") = e;
	long result;

	__asm__ volatile("syscall"
			 : "=a"(result)
			 : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8)
			 : "rcx", "r11", "memory");
	return result;
}
#elif defined(__aarch64__)
static inline long sys(long number, long a, long b, long c, long d, long e)
{
	register long x8 __asm__("x8") = number;
	register long x0 __asm__("x0") = a;
	register long x1 __asm__("x1") = b;
	register long x2 __asm__("x2") = c;
	register long x3 __asm__("x3") = d;
	register long x4 __asm__("x4") = e;

	__asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4) : "memory");
	return x0;
}
#else
#error "the zygote is written for x86_64 and aarch64"
#endif

#define SYS0(name) sys(SYS_##name, 0, 0, 0, 0, 0)
#define SYS1(name, a) sys(SYS_##name, (long)(a), 0, 0, 0, 0)
#define SYS2(name, a, b) sys(SYS_##name, (long)(a), (long)(b), 0, 0, 0)
#define SYS3(name, a, b, c) sys(SYS_##name, (long)(a), (long)(b), (long)(c), 0, 0)
#define SYS4(name, a, b, c, d) sys(SYS_##name, (long)(a), (long)(b), (long)(c), (long)(d), 0)
#define SYS5(name, a, b, c, d, e) sys(SYS_##name, (long)(a), (long)(b), (long)(c), (long)(d), (long)(e))

#endif
