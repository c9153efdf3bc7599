/* What a Cortex-M4F needs before main: the table of its vectors, and its floating-point unit switched on. */
#include <stdint.h>
#include <stdlib.h>

extern uint32_t stack_end;
void _start(void);

static void reset(void) {
    volatile uint32_t *const coprocessors = (volatile uint32_t *)0xE000ED88;
    *coprocessors |= 0xFU << 20;
    __asm__ volatile("dsb\n isb");
    _start();
}

static void fault(void) { _Exit(3); }

__attribute__((section(".vectors"), used)) static void (*const vectors[16])(void) = {
        (void (*)(void))&stack_end, reset, fault, fault, fault, fault, fault};
