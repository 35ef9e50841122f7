# What stands on the stack dies before the variables, where both end a generator.
# backend: eager
def generate(t, n):
    try:
        got = yield 1
    finally:
        print("ended")


def program(t6, flag7, items8, items9, t10):
    g12 = generate(t10, 3)
    for t13 in g12:
        for n15 in range(3):

            def f16(p17):
                try:
                    p17 = yield p17
                except GeneratorExit:
                    print("left")

            g21 = f16(t6)
            t23 = next(g21)
        return []


entry = program


def calls():
    shared = 1
    yield (shared, False, [], [], shared)
