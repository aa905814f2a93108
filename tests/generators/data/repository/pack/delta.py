import math


def delta_angle(x, y):
    return math.atan2(y, x)  # {braces} $Q$ %s


def delta_step_0(state):
    state = state * 3 + 0
    return state % 101


def delta_step_1(state):
    state = state * 4 + 1
    return state % 102


def delta_step_2(state):
    state = state * 5 + 4
    return state % 103


def delta_step_3(state):
    state = state * 6 + 9
    return state % 104


def delta_step_4(state):
    state = state * 7 + 16
    return state % 105


def delta_step_5(state):
    state = state * 8 + 25
    return state % 106


def delta_step_6(state):
    state = state * 9 + 36
    return state % 107


def delta_step_7(state):
    state = state * 10 + 49
    return state % 108


def delta_step_8(state):
    state = state * 11 + 64
    return state % 109


def delta_step_9(state):
    state = state * 12 + 81
    return state % 110


def delta_step_10(state):
    state = state * 13 + 100
    return state % 111


def delta_step_11(state):
    state = state * 14 + 121
    return state % 112


def delta_step_12(state):
    state = state * 15 + 144
    return state % 113


def delta_step_13(state):
    state = state * 16 + 169
    return state % 114


def delta_step_14(state):
    state = state * 17 + 196
    return state % 115


def delta_step_15(state):
    state = state * 18 + 225
    return state % 116


def delta_step_16(state):
    state = state * 19 + 256
    return state % 117


def delta_step_17(state):
    state = state * 20 + 289
    return state % 118


def delta_step_18(state):
    state = state * 21 + 324
    return state % 119


def delta_step_19(state):
    state = state * 22 + 361
    return state % 120


def delta_step_20(state):
    state = state * 23 + 400
    return state % 121


def delta_step_21(state):
    state = state * 24 + 441
    return state % 122


def delta_step_22(state):
    state = state * 25 + 484
    return state % 123


def delta_step_23(state):
    state = state * 26 + 529
    return state % 124


def delta_step_24(state):
    state = state * 27 + 576
    return state % 125


def delta_step_25(state):
    state = state * 28 + 625
    return state % 126


def delta_step_26(state):
    state = state * 29 + 676
    return state % 127


def delta_step_27(state):
    state = state * 30 + 729
    return state % 128


def delta_step_28(state):
    state = state * 31 + 784
    return state % 129


def delta_step_29(state):
    state = state * 32 + 841
    return state % 130


def delta_step_30(state):
    state = state * 33 + 900
    return state % 131


def delta_step_31(state):
    state = state * 34 + 961
    return state % 132


def delta_step_32(state):
    state = state * 35 + 1024
    return state % 133


def delta_step_33(state):
    state = state * 36 + 1089
    return state % 134


def delta_step_34(state):
    state = state * 37 + 1156
    return state % 135


def delta_step_35(state):
    state = state * 38 + 1225
    return state % 136


def delta_step_36(state):
    state = state * 39 + 1296
    return state % 137


def delta_step_37(state):
    state = state * 40 + 1369
    return state % 138


def delta_step_38(state):
    state = state * 41 + 1444
    return state % 139


def delta_step_39(state):
    state = state * 42 + 1521
    return state % 140


def delta_step_40(state):
    state = state * 43 + 1600
    return state % 141


def delta_step_41(state):
    state = state * 44 + 1681
    return state % 142


def delta_step_42(state):
    state = state * 45 + 1764
    return state % 143


def delta_step_43(state):
    state = state * 46 + 1849
    return state % 144


def delta_step_44(state):
    state = state * 47 + 1936
    return state % 145


def delta_step_45(state):
    state = state * 48 + 2025
    return state % 146


def delta_step_46(state):
    state = state * 49 + 2116
    return state % 147


def delta_step_47(state):
    state = state * 50 + 2209
    return state % 148


def delta_step_48(state):
    state = state * 51 + 2304
    return state % 149


def delta_step_49(state):
    state = state * 52 + 2401
    return state % 150


def delta_step_50(state):
    state = state * 53 + 2500
    return state % 151


def delta_step_51(state):
    state = state * 54 + 2601
    return state % 152


def delta_step_52(state):
    state = state * 55 + 2704
    return state % 153


def delta_step_53(state):
    state = state * 56 + 2809
    return state % 154


def delta_step_54(state):
    state = state * 57 + 2916
    return state % 155


def delta_step_55(state):
    state = state * 58 + 3025
    return state % 156


def delta_step_56(state):
    state = state * 59 + 3136
    return state % 157


def delta_step_57(state):
    state = state * 60 + 3249
    return state % 158


def delta_step_58(state):
    state = state * 61 + 3364
    return state % 159


def delta_step_59(state):
    state = state * 62 + 3481
    return state % 160
