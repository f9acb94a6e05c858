; ModuleID = "microkernel_f32_2x16_packed_packed"
target triple = "x86_64-unknown-linux-gnu"
target datalayout = ""

define void @"microkernel_f32_2x16_packed_packed"(i64 %"kc", ptr noalias %"a", i64 %"lda", ptr noalias %"b", i64 %"ldb", ptr noalias %"c", i64 %"ldc", i64 %"cols", float %"alpha", float %"beta", ptr noalias %"ahead", i64 %"ahead_step") "min-legal-vector-width"="512" "no-builtins" "prefer-vector-width"="512" nounwind
{
entry:
  %"reg" = alloca <16 x float>
  %"reg.1" = alloca <16 x float>
  br label %"body"
body:
  %"sub" = sub i64 %"cols", 0
  %".15" = trunc i64 %"sub" to i32
  %".16" = insertelement <16 x i32> <i32 undef, i32 undef, i32 undef, i32 undef, i32 undef, i32 undef, i32 undef, i32 undef, i32 undef, i32 undef, i32 undef, i32 undef, i32 undef, i32 undef, i32 undef, i32 undef>, i32 %".15", i32 0
  %"splat" = shufflevector <16 x i32> %".16", <16 x i32> <i32 undef, i32 undef, i32 undef, i32 undef, i32 undef, i32 undef, i32 undef, i32 undef, i32 undef, i32 undef, i32 undef, i32 undef, i32 undef, i32 undef, i32 undef, i32 undef>, <16 x i32> <i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0>
  %"mask" = icmp sgt <16 x i32> %"splat", <i32 0, i32 1, i32 2, i32 3, i32 4, i32 5, i32 6, i32 7, i32 8, i32 9, i32 10, i32 11, i32 12, i32 13, i32 14, i32 15>
  store <16 x float> <float              0x0, float              0x0, float              0x0, float              0x0, float              0x0, float              0x0, float              0x0, float              0x0, float              0x0, float              0x0, float              0x0, float              0x0, float              0x0, float              0x0, float              0x0, float              0x0>, <16 x float>* %"reg"
  store <16 x float> <float              0x0, float              0x0, float              0x0, float              0x0, float              0x0, float              0x0, float              0x0, float              0x0, float              0x0, float              0x0, float              0x0, float              0x0, float              0x0, float              0x0, float              0x0, float              0x0>, <16 x float>* %"reg.1"
  %"div" = udiv i64 %"kc", 4
  %"lt" = icmp slt i64 %"div", 14
  br i1 %"lt", label %"then", label %"end"
then:
  %"mul" = mul i64 %"ldc", 2
  %"at" = getelementptr float, ptr %"c", i64 %"mul"
  call void @"llvm.prefetch.p0"(ptr %"at", i32 1, i32 2, i32 1)
  %"mul.1" = mul i64 %"ldc", 3
  %"at.1" = getelementptr float, ptr %"c", i64 %"mul.1"
  call void @"llvm.prefetch.p0"(ptr %"at.1", i32 1, i32 2, i32 1)
  br label %"end"
end:
  %"sub.1" = sub i64 %"div", 14
  %"lt.1" = icmp slt i64 %"sub.1", 0
  %"select" = select  i1 %"lt.1", i64 0, i64 %"sub.1"
  %".23" = icmp slt i64 0, %"div"
  br i1 %".23", label %"loop", label %"done"
loop:
  %"index" = phi  i64 [0, %"end"], [%"next", %"loop"]
  %"sub.2" = sub i64 %"index", %"select"
  %"mul.2" = mul i64 %"sub.2", %"ldc"
  %"at.2" = getelementptr float, ptr %"c", i64 %"mul.2"
  %"lt.2" = icmp slt i64 %"index", %"select"
  %"mul.3" = mul i64 %"index", %"ahead_step"
  %"at.3" = getelementptr i8, ptr %"ahead", i64 %"mul.3"
  %"select.1" = select  i1 %"lt.2", ptr %"at.3", ptr %"at.2"
  call void @"llvm.prefetch.p0"(ptr %"select.1", i32 0, i32 2, i32 1)
  %"at.4" = getelementptr i8, ptr %"select.1", i64 63
  call void @"llvm.prefetch.p0"(ptr %"at.4", i32 0, i32 2, i32 1)
  %"mul.4" = mul i64 %"index", 4
  %"mul.5" = mul i64 %"mul.4", 16
  %"at.5" = getelementptr float, ptr %"b", i64 %"mul.5"
  %"load" = load <16 x float>, ptr %"at.5", align 64
  %"mul.6" = mul i64 %"mul.4", 2
  %"at.6" = getelementptr float, ptr %"a", i64 %"mul.6"
  %"load.1" = load float, ptr %"at.6", align 4
  %".27" = insertelement <16 x float> <float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef>, float %"load.1", i32 0
  %"splat.1" = shufflevector <16 x float> %".27", <16 x float> <float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef>, <16 x i32> <i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0>
  %"read" = load <16 x float>, <16 x float>* %"reg"
  %"fma" = call <16 x float> @"llvm.fma.v16f32"(<16 x float> %"splat.1", <16 x float> %"load", <16 x float> %"read")
  store <16 x float> %"fma", <16 x float>* %"reg"
  %"mul.7" = mul i64 %"mul.4", 2
  %"add" = add i64 %"mul.7", 1
  %"at.7" = getelementptr float, ptr %"a", i64 %"add"
  %"load.2" = load float, ptr %"at.7", align 4
  %".29" = insertelement <16 x float> <float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef>, float %"load.2", i32 0
  %"splat.2" = shufflevector <16 x float> %".29", <16 x float> <float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef>, <16 x i32> <i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0>
  %"read.1" = load <16 x float>, <16 x float>* %"reg.1"
  %"fma.1" = call <16 x float> @"llvm.fma.v16f32"(<16 x float> %"splat.2", <16 x float> %"load", <16 x float> %"read.1")
  store <16 x float> %"fma.1", <16 x float>* %"reg.1"
  %"mul.8" = mul i64 %"index", 4
  %"add.1" = add i64 %"mul.8", 1
  %"mul.9" = mul i64 %"add.1", 16
  %"at.8" = getelementptr float, ptr %"b", i64 %"mul.9"
  %"load.3" = load <16 x float>, ptr %"at.8", align 64
  %"mul.10" = mul i64 %"add.1", 2
  %"at.9" = getelementptr float, ptr %"a", i64 %"mul.10"
  %"load.4" = load float, ptr %"at.9", align 4
  %".31" = insertelement <16 x float> <float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef>, float %"load.4", i32 0
  %"splat.3" = shufflevector <16 x float> %".31", <16 x float> <float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef>, <16 x i32> <i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0>
  %"read.2" = load <16 x float>, <16 x float>* %"reg"
  %"fma.2" = call <16 x float> @"llvm.fma.v16f32"(<16 x float> %"splat.3", <16 x float> %"load.3", <16 x float> %"read.2")
  store <16 x float> %"fma.2", <16 x float>* %"reg"
  %"mul.11" = mul i64 %"add.1", 2
  %"add.2" = add i64 %"mul.11", 1
  %"at.10" = getelementptr float, ptr %"a", i64 %"add.2"
  %"load.5" = load float, ptr %"at.10", align 4
  %".33" = insertelement <16 x float> <float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef>, float %"load.5", i32 0
  %"splat.4" = shufflevector <16 x float> %".33", <16 x float> <float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef>, <16 x i32> <i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0>
  %"read.3" = load <16 x float>, <16 x float>* %"reg.1"
  %"fma.3" = call <16 x float> @"llvm.fma.v16f32"(<16 x float> %"splat.4", <16 x float> %"load.3", <16 x float> %"read.3")
  store <16 x float> %"fma.3", <16 x float>* %"reg.1"
  %"mul.12" = mul i64 %"index", 4
  %"add.3" = add i64 %"mul.12", 2
  %"mul.13" = mul i64 %"add.3", 16
  %"at.11" = getelementptr float, ptr %"b", i64 %"mul.13"
  %"load.6" = load <16 x float>, ptr %"at.11", align 64
  %"mul.14" = mul i64 %"add.3", 2
  %"at.12" = getelementptr float, ptr %"a", i64 %"mul.14"
  %"load.7" = load float, ptr %"at.12", align 4
  %".35" = insertelement <16 x float> <float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef>, float %"load.7", i32 0
  %"splat.5" = shufflevector <16 x float> %".35", <16 x float> <float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef>, <16 x i32> <i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0>
  %"read.4" = load <16 x float>, <16 x float>* %"reg"
  %"fma.4" = call <16 x float> @"llvm.fma.v16f32"(<16 x float> %"splat.5", <16 x float> %"load.6", <16 x float> %"read.4")
  store <16 x float> %"fma.4", <16 x float>* %"reg"
  %"mul.15" = mul i64 %"add.3", 2
  %"add.4" = add i64 %"mul.15", 1
  %"at.13" = getelementptr float, ptr %"a", i64 %"add.4"
  %"load.8" = load float, ptr %"at.13", align 4
  %".37" = insertelement <16 x float> <float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef>, float %"load.8", i32 0
  %"splat.6" = shufflevector <16 x float> %".37", <16 x float> <float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef>, <16 x i32> <i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0>
  %"read.5" = load <16 x float>, <16 x float>* %"reg.1"
  %"fma.5" = call <16 x float> @"llvm.fma.v16f32"(<16 x float> %"splat.6", <16 x float> %"load.6", <16 x float> %"read.5")
  store <16 x float> %"fma.5", <16 x float>* %"reg.1"
  %"mul.16" = mul i64 %"index", 4
  %"add.5" = add i64 %"mul.16", 3
  %"mul.17" = mul i64 %"add.5", 16
  %"at.14" = getelementptr float, ptr %"b", i64 %"mul.17"
  %"load.9" = load <16 x float>, ptr %"at.14", align 64
  %"mul.18" = mul i64 %"add.5", 2
  %"at.15" = getelementptr float, ptr %"a", i64 %"mul.18"
  %"load.10" = load float, ptr %"at.15", align 4
  %".39" = insertelement <16 x float> <float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef>, float %"load.10", i32 0
  %"splat.7" = shufflevector <16 x float> %".39", <16 x float> <float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef>, <16 x i32> <i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0>
  %"read.6" = load <16 x float>, <16 x float>* %"reg"
  %"fma.6" = call <16 x float> @"llvm.fma.v16f32"(<16 x float> %"splat.7", <16 x float> %"load.9", <16 x float> %"read.6")
  store <16 x float> %"fma.6", <16 x float>* %"reg"
  %"mul.19" = mul i64 %"add.5", 2
  %"add.6" = add i64 %"mul.19", 1
  %"at.16" = getelementptr float, ptr %"a", i64 %"add.6"
  %"load.11" = load float, ptr %"at.16", align 4
  %".41" = insertelement <16 x float> <float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef>, float %"load.11", i32 0
  %"splat.8" = shufflevector <16 x float> %".41", <16 x float> <float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef>, <16 x i32> <i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0>
  %"read.7" = load <16 x float>, <16 x float>* %"reg.1"
  %"fma.7" = call <16 x float> @"llvm.fma.v16f32"(<16 x float> %"splat.8", <16 x float> %"load.9", <16 x float> %"read.7")
  store <16 x float> %"fma.7", <16 x float>* %"reg.1"
  %"next" = add nsw i64 %"index", 1
  %".43" = icmp slt i64 %"next", %"div"
  br i1 %".43", label %"loop", label %"done"
done:
  %"mul.20" = mul i64 %"div", 4
  %".45" = icmp slt i64 %"mul.20", %"kc"
  br i1 %".45", label %"loop.1", label %"done.1"
loop.1:
  %"index.1" = phi  i64 [%"mul.20", %"done"], [%"next.1", %"loop.1"]
  %"mul.21" = mul i64 %"index.1", 16
  %"at.17" = getelementptr float, ptr %"b", i64 %"mul.21"
  %"load.12" = load <16 x float>, ptr %"at.17", align 64
  %"mul.22" = mul i64 %"index.1", 2
  %"at.18" = getelementptr float, ptr %"a", i64 %"mul.22"
  %"load.13" = load float, ptr %"at.18", align 4
  %".47" = insertelement <16 x float> <float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef>, float %"load.13", i32 0
  %"splat.9" = shufflevector <16 x float> %".47", <16 x float> <float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef>, <16 x i32> <i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0>
  %"read.8" = load <16 x float>, <16 x float>* %"reg"
  %"fma.8" = call <16 x float> @"llvm.fma.v16f32"(<16 x float> %"splat.9", <16 x float> %"load.12", <16 x float> %"read.8")
  store <16 x float> %"fma.8", <16 x float>* %"reg"
  %"mul.23" = mul i64 %"index.1", 2
  %"add.7" = add i64 %"mul.23", 1
  %"at.19" = getelementptr float, ptr %"a", i64 %"add.7"
  %"load.14" = load float, ptr %"at.19", align 4
  %".49" = insertelement <16 x float> <float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef>, float %"load.14", i32 0
  %"splat.10" = shufflevector <16 x float> %".49", <16 x float> <float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef>, <16 x i32> <i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0>
  %"read.9" = load <16 x float>, <16 x float>* %"reg.1"
  %"fma.9" = call <16 x float> @"llvm.fma.v16f32"(<16 x float> %"splat.10", <16 x float> %"load.12", <16 x float> %"read.9")
  store <16 x float> %"fma.9", <16 x float>* %"reg.1"
  %"next.1" = add nsw i64 %"index.1", 1
  %".51" = icmp slt i64 %"next.1", %"kc"
  br i1 %".51", label %"loop.1", label %"done.1"
done.1:
  %"ne" = fcmp une float %"alpha", 0x3ff0000000000000
  br i1 %"ne", label %"then.1", label %"end.1"
then.1:
  %"read.10" = load <16 x float>, <16 x float>* %"reg"
  %".54" = insertelement <16 x float> <float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef>, float %"alpha", i32 0
  %"splat.11" = shufflevector <16 x float> %".54", <16 x float> <float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef>, <16 x i32> <i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0>
  %"mul.24" = fmul <16 x float> %"read.10", %"splat.11"
  store <16 x float> %"mul.24", <16 x float>* %"reg"
  %"read.11" = load <16 x float>, <16 x float>* %"reg.1"
  %".56" = insertelement <16 x float> <float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef>, float %"alpha", i32 0
  %"splat.12" = shufflevector <16 x float> %".56", <16 x float> <float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef>, <16 x i32> <i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0>
  %"mul.25" = fmul <16 x float> %"read.11", %"splat.12"
  store <16 x float> %"mul.25", <16 x float>* %"reg.1"
  br label %"end.1"
end.1:
  %"eq" = icmp eq i64 %"cols", 16
  br i1 %"eq", label %"then.2", label %"else"
then.2:
  %"eq.1" = fcmp oeq float %"beta",              0x0
  br i1 %"eq.1", label %"then.3", label %"else.1"
end.2:
  ret void
else:
  %"eq.2" = fcmp oeq float %"beta",              0x0
  br i1 %"eq.2", label %"then.4", label %"else.2"
then.3:
  %"mul.26" = mul i64 %"ldc", 0
  %"at.20" = getelementptr float, ptr %"c", i64 %"mul.26"
  %"read.12" = load <16 x float>, <16 x float>* %"reg"
  store <16 x float> %"read.12", ptr %"at.20", align 4
  %"at.21" = getelementptr float, ptr %"c", i64 %"ldc"
  %"read.13" = load <16 x float>, <16 x float>* %"reg.1"
  store <16 x float> %"read.13", ptr %"at.21", align 4
  br label %"end.3"
end.3:
  br label %"end.2"
else.1:
  %"mul.27" = mul i64 %"ldc", 0
  %"at.22" = getelementptr float, ptr %"c", i64 %"mul.27"
  %"read.14" = load <16 x float>, <16 x float>* %"reg"
  %".64" = insertelement <16 x float> <float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef>, float %"beta", i32 0
  %"splat.13" = shufflevector <16 x float> %".64", <16 x float> <float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef>, <16 x i32> <i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0>
  %"load.15" = load <16 x float>, ptr %"at.22", align 4
  %"fma.10" = call <16 x float> @"llvm.fma.v16f32"(<16 x float> %"splat.13", <16 x float> %"load.15", <16 x float> %"read.14")
  store <16 x float> %"fma.10", ptr %"at.22", align 4
  %"at.23" = getelementptr float, ptr %"c", i64 %"ldc"
  %"read.15" = load <16 x float>, <16 x float>* %"reg.1"
  %".66" = insertelement <16 x float> <float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef>, float %"beta", i32 0
  %"splat.14" = shufflevector <16 x float> %".66", <16 x float> <float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef>, <16 x i32> <i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0>
  %"load.16" = load <16 x float>, ptr %"at.23", align 4
  %"fma.11" = call <16 x float> @"llvm.fma.v16f32"(<16 x float> %"splat.14", <16 x float> %"load.16", <16 x float> %"read.15")
  store <16 x float> %"fma.11", ptr %"at.23", align 4
  br label %"end.3"
then.4:
  %"mul.28" = mul i64 %"ldc", 0
  %"at.24" = getelementptr float, ptr %"c", i64 %"mul.28"
  %"read.16" = load <16 x float>, <16 x float>* %"reg"
  call void @"llvm.masked.store.v16f32.p0"(<16 x float> %"read.16", ptr %"at.24", i32 4, <16 x i1> %"mask")
  %"at.25" = getelementptr float, ptr %"c", i64 %"ldc"
  %"read.17" = load <16 x float>, <16 x float>* %"reg.1"
  call void @"llvm.masked.store.v16f32.p0"(<16 x float> %"read.17", ptr %"at.25", i32 4, <16 x i1> %"mask")
  br label %"end.4"
end.4:
  br label %"end.2"
else.2:
  %"mul.29" = mul i64 %"ldc", 0
  %"at.26" = getelementptr float, ptr %"c", i64 %"mul.29"
  %"read.18" = load <16 x float>, <16 x float>* %"reg"
  %".74" = insertelement <16 x float> <float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef>, float %"beta", i32 0
  %"splat.15" = shufflevector <16 x float> %".74", <16 x float> <float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef>, <16 x i32> <i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0>
  %"load.17" = call <16 x float> @"llvm.masked.load.v16f32.p0"(ptr %"at.26", i32 4, <16 x i1> %"mask", <16 x float> <float 0.0, float 0.0, float 0.0, float 0.0, float 0.0, float 0.0, float 0.0, float 0.0, float 0.0, float 0.0, float 0.0, float 0.0, float 0.0, float 0.0, float 0.0, float 0.0>)
  %"fma.12" = call <16 x float> @"llvm.fma.v16f32"(<16 x float> %"splat.15", <16 x float> %"load.17", <16 x float> %"read.18")
  call void @"llvm.masked.store.v16f32.p0"(<16 x float> %"fma.12", ptr %"at.26", i32 4, <16 x i1> %"mask")
  %"at.27" = getelementptr float, ptr %"c", i64 %"ldc"
  %"read.19" = load <16 x float>, <16 x float>* %"reg.1"
  %".76" = insertelement <16 x float> <float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef>, float %"beta", i32 0
  %"splat.16" = shufflevector <16 x float> %".76", <16 x float> <float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef>, <16 x i32> <i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0>
  %"load.18" = call <16 x float> @"llvm.masked.load.v16f32.p0"(ptr %"at.27", i32 4, <16 x i1> %"mask", <16 x float> <float 0.0, float 0.0, float 0.0, float 0.0, float 0.0, float 0.0, float 0.0, float 0.0, float 0.0, float 0.0, float 0.0, float 0.0, float 0.0, float 0.0, float 0.0, float 0.0>)
  %"fma.13" = call <16 x float> @"llvm.fma.v16f32"(<16 x float> %"splat.16", <16 x float> %"load.18", <16 x float> %"read.19")
  call void @"llvm.masked.store.v16f32.p0"(<16 x float> %"fma.13", ptr %"at.27", i32 4, <16 x i1> %"mask")
  br label %"end.4"
}

declare void @"llvm.prefetch.p0"(ptr %".1", i32 %".2", i32 %".3", i32 %".4")

declare <16 x float> @"llvm.fma.v16f32"(<16 x float> %".1", <16 x float> %".2", <16 x float> %".3")

declare void @"llvm.masked.store.v16f32.p0"(<16 x float> %".1", ptr %".2", i32 %".3", <16 x i1> %".4")

declare <16 x float> @"llvm.masked.load.v16f32.p0"(ptr %".1", i32 %".2", <16 x i1> %".3", <16 x float> %".4")
