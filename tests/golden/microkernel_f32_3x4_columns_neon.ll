; ModuleID = "microkernel_f32_3x4_columns_rows"
target triple = "aarch64-unknown-linux-gnu"
target datalayout = ""

define void @"microkernel_f32_3x4_columns_rows"(i64 %"kc", ptr noalias %"a", i64 %"lda", ptr noalias %"b", i64 %"ldb", ptr noalias %"c", i64 %"ldc", i64 %"cols", float %"alpha", float %"beta", ptr noalias %"ahead", i64 %"ahead_step") "no-builtins" nounwind
{
entry:
  %"reg" = alloca <4 x float>
  %"reg.1" = alloca <4 x float>
  %"reg.2" = alloca <4 x float>
  br label %"body"
body:
  %"sub" = sub i64 %"cols", 0
  %".15" = trunc i64 %"sub" to i32
  %".16" = insertelement <4 x i32> <i32 undef, i32 undef, i32 undef, i32 undef>, i32 %".15", i32 0
  %"splat" = shufflevector <4 x i32> %".16", <4 x i32> <i32 undef, i32 undef, i32 undef, i32 undef>, <4 x i32> <i32 0, i32 0, i32 0, i32 0>
  %"mask" = icmp sgt <4 x i32> %"splat", <i32 0, i32 1, i32 2, i32 3>
  store <4 x float> <float              0x0, float              0x0, float              0x0, float              0x0>, <4 x float>* %"reg"
  store <4 x float> <float              0x0, float              0x0, float              0x0, float              0x0>, <4 x float>* %"reg.1"
  store <4 x float> <float              0x0, float              0x0, float              0x0, float              0x0>, <4 x float>* %"reg.2"
  %".20" = icmp slt i64 0, %"kc"
  br i1 %".20", label %"loop", label %"done"
loop:
  %"index" = phi  i64 [0, %"body"], [%"next", %"loop"]
  %"mul" = mul i64 %"index", %"ldb"
  %"at" = getelementptr float, ptr %"b", i64 %"mul"
  %"at.1" = getelementptr float, ptr %"at", i64 4
  call void @"llvm.prefetch.p0"(ptr %"at.1", i32 0, i32 3, i32 1)
  %"mul.1" = mul i64 %"index", %"ahead_step"
  %"at.2" = getelementptr float, ptr %"ahead", i64 %"mul.1"
  call void @"llvm.prefetch.p0"(ptr %"at.2", i32 0, i32 2, i32 1)
  %"load" = load <4 x float>, ptr %"at", align 4
  %"mul.2" = mul i64 %"index", %"lda"
  %"at.3" = getelementptr float, ptr %"a", i64 %"mul.2"
  %"load.1" = load float, ptr %"at.3", align 4
  %".24" = insertelement <4 x float> <float undef, float undef, float undef, float undef>, float %"load.1", i32 0
  %"splat.1" = shufflevector <4 x float> %".24", <4 x float> <float undef, float undef, float undef, float undef>, <4 x i32> <i32 0, i32 0, i32 0, i32 0>
  %"read" = load <4 x float>, <4 x float>* %"reg"
  %"fma" = call <4 x float> @"llvm.fma.v4f32"(<4 x float> %"splat.1", <4 x float> %"load", <4 x float> %"read")
  store <4 x float> %"fma", <4 x float>* %"reg"
  %"mul.3" = mul i64 %"index", %"lda"
  %"add" = add i64 %"mul.3", 1
  %"at.4" = getelementptr float, ptr %"a", i64 %"add"
  %"load.2" = load float, ptr %"at.4", align 4
  %".26" = insertelement <4 x float> <float undef, float undef, float undef, float undef>, float %"load.2", i32 0
  %"splat.2" = shufflevector <4 x float> %".26", <4 x float> <float undef, float undef, float undef, float undef>, <4 x i32> <i32 0, i32 0, i32 0, i32 0>
  %"read.1" = load <4 x float>, <4 x float>* %"reg.1"
  %"fma.1" = call <4 x float> @"llvm.fma.v4f32"(<4 x float> %"splat.2", <4 x float> %"load", <4 x float> %"read.1")
  store <4 x float> %"fma.1", <4 x float>* %"reg.1"
  %"mul.4" = mul i64 %"index", %"lda"
  %"add.1" = add i64 %"mul.4", 2
  %"at.5" = getelementptr float, ptr %"a", i64 %"add.1"
  %"load.3" = load float, ptr %"at.5", align 4
  %".28" = insertelement <4 x float> <float undef, float undef, float undef, float undef>, float %"load.3", i32 0
  %"splat.3" = shufflevector <4 x float> %".28", <4 x float> <float undef, float undef, float undef, float undef>, <4 x i32> <i32 0, i32 0, i32 0, i32 0>
  %"read.2" = load <4 x float>, <4 x float>* %"reg.2"
  %"fma.2" = call <4 x float> @"llvm.fma.v4f32"(<4 x float> %"splat.3", <4 x float> %"load", <4 x float> %"read.2")
  store <4 x float> %"fma.2", <4 x float>* %"reg.2"
  %"next" = add nsw i64 %"index", 1
  %".30" = icmp slt i64 %"next", %"kc"
  br i1 %".30", label %"loop", label %"done"
done:
  %"ne" = fcmp une float %"alpha", 0x3ff0000000000000
  br i1 %"ne", label %"then", label %"end"
then:
  %"read.3" = load <4 x float>, <4 x float>* %"reg"
  %".33" = insertelement <4 x float> <float undef, float undef, float undef, float undef>, float %"alpha", i32 0
  %"splat.4" = shufflevector <4 x float> %".33", <4 x float> <float undef, float undef, float undef, float undef>, <4 x i32> <i32 0, i32 0, i32 0, i32 0>
  %"mul.5" = fmul <4 x float> %"read.3", %"splat.4"
  store <4 x float> %"mul.5", <4 x float>* %"reg"
  %"read.4" = load <4 x float>, <4 x float>* %"reg.1"
  %".35" = insertelement <4 x float> <float undef, float undef, float undef, float undef>, float %"alpha", i32 0
  %"splat.5" = shufflevector <4 x float> %".35", <4 x float> <float undef, float undef, float undef, float undef>, <4 x i32> <i32 0, i32 0, i32 0, i32 0>
  %"mul.6" = fmul <4 x float> %"read.4", %"splat.5"
  store <4 x float> %"mul.6", <4 x float>* %"reg.1"
  %"read.5" = load <4 x float>, <4 x float>* %"reg.2"
  %".37" = insertelement <4 x float> <float undef, float undef, float undef, float undef>, float %"alpha", i32 0
  %"splat.6" = shufflevector <4 x float> %".37", <4 x float> <float undef, float undef, float undef, float undef>, <4 x i32> <i32 0, i32 0, i32 0, i32 0>
  %"mul.7" = fmul <4 x float> %"read.5", %"splat.6"
  store <4 x float> %"mul.7", <4 x float>* %"reg.2"
  br label %"end"
end:
  %"eq" = icmp eq i64 %"cols", 4
  br i1 %"eq", label %"then.1", label %"else"
then.1:
  %"eq.1" = fcmp oeq float %"beta",              0x0
  br i1 %"eq.1", label %"then.2", label %"else.1"
end.1:
  ret void
else:
  %"eq.2" = fcmp oeq float %"beta",              0x0
  br i1 %"eq.2", label %"then.3", label %"else.2"
then.2:
  %"mul.8" = mul i64 %"ldc", 0
  %"at.6" = getelementptr float, ptr %"c", i64 %"mul.8"
  %"read.6" = load <4 x float>, <4 x float>* %"reg"
  store <4 x float> %"read.6", ptr %"at.6", align 4
  %"at.7" = getelementptr float, ptr %"c", i64 %"ldc"
  %"read.7" = load <4 x float>, <4 x float>* %"reg.1"
  store <4 x float> %"read.7", ptr %"at.7", align 4
  %"mul.9" = mul i64 %"ldc", 2
  %"at.8" = getelementptr float, ptr %"c", i64 %"mul.9"
  %"read.8" = load <4 x float>, <4 x float>* %"reg.2"
  store <4 x float> %"read.8", ptr %"at.8", align 4
  br label %"end.2"
end.2:
  br label %"end.1"
else.1:
  %"mul.10" = mul i64 %"ldc", 0
  %"at.9" = getelementptr float, ptr %"c", i64 %"mul.10"
  %"read.9" = load <4 x float>, <4 x float>* %"reg"
  %".46" = insertelement <4 x float> <float undef, float undef, float undef, float undef>, float %"beta", i32 0
  %"splat.7" = shufflevector <4 x float> %".46", <4 x float> <float undef, float undef, float undef, float undef>, <4 x i32> <i32 0, i32 0, i32 0, i32 0>
  %"load.4" = load <4 x float>, ptr %"at.9", align 4
  %"fma.3" = call <4 x float> @"llvm.fma.v4f32"(<4 x float> %"splat.7", <4 x float> %"load.4", <4 x float> %"read.9")
  store <4 x float> %"fma.3", ptr %"at.9", align 4
  %"at.10" = getelementptr float, ptr %"c", i64 %"ldc"
  %"read.10" = load <4 x float>, <4 x float>* %"reg.1"
  %".48" = insertelement <4 x float> <float undef, float undef, float undef, float undef>, float %"beta", i32 0
  %"splat.8" = shufflevector <4 x float> %".48", <4 x float> <float undef, float undef, float undef, float undef>, <4 x i32> <i32 0, i32 0, i32 0, i32 0>
  %"load.5" = load <4 x float>, ptr %"at.10", align 4
  %"fma.4" = call <4 x float> @"llvm.fma.v4f32"(<4 x float> %"splat.8", <4 x float> %"load.5", <4 x float> %"read.10")
  store <4 x float> %"fma.4", ptr %"at.10", align 4
  %"mul.11" = mul i64 %"ldc", 2
  %"at.11" = getelementptr float, ptr %"c", i64 %"mul.11"
  %"read.11" = load <4 x float>, <4 x float>* %"reg.2"
  %".50" = insertelement <4 x float> <float undef, float undef, float undef, float undef>, float %"beta", i32 0
  %"splat.9" = shufflevector <4 x float> %".50", <4 x float> <float undef, float undef, float undef, float undef>, <4 x i32> <i32 0, i32 0, i32 0, i32 0>
  %"load.6" = load <4 x float>, ptr %"at.11", align 4
  %"fma.5" = call <4 x float> @"llvm.fma.v4f32"(<4 x float> %"splat.9", <4 x float> %"load.6", <4 x float> %"read.11")
  store <4 x float> %"fma.5", ptr %"at.11", align 4
  br label %"end.2"
then.3:
  %"mul.12" = mul i64 %"ldc", 0
  %"at.12" = getelementptr float, ptr %"c", i64 %"mul.12"
  %"read.12" = load <4 x float>, <4 x float>* %"reg"
  call void @"llvm.masked.store.v4f32.p0"(<4 x float> %"read.12", ptr %"at.12", i32 4, <4 x i1> %"mask")
  %"at.13" = getelementptr float, ptr %"c", i64 %"ldc"
  %"read.13" = load <4 x float>, <4 x float>* %"reg.1"
  call void @"llvm.masked.store.v4f32.p0"(<4 x float> %"read.13", ptr %"at.13", i32 4, <4 x i1> %"mask")
  %"mul.13" = mul i64 %"ldc", 2
  %"at.14" = getelementptr float, ptr %"c", i64 %"mul.13"
  %"read.14" = load <4 x float>, <4 x float>* %"reg.2"
  call void @"llvm.masked.store.v4f32.p0"(<4 x float> %"read.14", ptr %"at.14", i32 4, <4 x i1> %"mask")
  br label %"end.3"
end.3:
  br label %"end.1"
else.2:
  %"mul.14" = mul i64 %"ldc", 0
  %"at.15" = getelementptr float, ptr %"c", i64 %"mul.14"
  %"read.15" = load <4 x float>, <4 x float>* %"reg"
  %".59" = insertelement <4 x float> <float undef, float undef, float undef, float undef>, float %"beta", i32 0
  %"splat.10" = shufflevector <4 x float> %".59", <4 x float> <float undef, float undef, float undef, float undef>, <4 x i32> <i32 0, i32 0, i32 0, i32 0>
  %"load.7" = call <4 x float> @"llvm.masked.load.v4f32.p0"(ptr %"at.15", i32 4, <4 x i1> %"mask", <4 x float> <float 0.0, float 0.0, float 0.0, float 0.0>)
  %"fma.6" = call <4 x float> @"llvm.fma.v4f32"(<4 x float> %"splat.10", <4 x float> %"load.7", <4 x float> %"read.15")
  call void @"llvm.masked.store.v4f32.p0"(<4 x float> %"fma.6", ptr %"at.15", i32 4, <4 x i1> %"mask")
  %"at.16" = getelementptr float, ptr %"c", i64 %"ldc"
  %"read.16" = load <4 x float>, <4 x float>* %"reg.1"
  %".61" = insertelement <4 x float> <float undef, float undef, float undef, float undef>, float %"beta", i32 0
  %"splat.11" = shufflevector <4 x float> %".61", <4 x float> <float undef, float undef, float undef, float undef>, <4 x i32> <i32 0, i32 0, i32 0, i32 0>
  %"load.8" = call <4 x float> @"llvm.masked.load.v4f32.p0"(ptr %"at.16", i32 4, <4 x i1> %"mask", <4 x float> <float 0.0, float 0.0, float 0.0, float 0.0>)
  %"fma.7" = call <4 x float> @"llvm.fma.v4f32"(<4 x float> %"splat.11", <4 x float> %"load.8", <4 x float> %"read.16")
  call void @"llvm.masked.store.v4f32.p0"(<4 x float> %"fma.7", ptr %"at.16", i32 4, <4 x i1> %"mask")
  %"mul.15" = mul i64 %"ldc", 2
  %"at.17" = getelementptr float, ptr %"c", i64 %"mul.15"
  %"read.17" = load <4 x float>, <4 x float>* %"reg.2"
  %".63" = insertelement <4 x float> <float undef, float undef, float undef, float undef>, float %"beta", i32 0
  %"splat.12" = shufflevector <4 x float> %".63", <4 x float> <float undef, float undef, float undef, float undef>, <4 x i32> <i32 0, i32 0, i32 0, i32 0>
  %"load.9" = call <4 x float> @"llvm.masked.load.v4f32.p0"(ptr %"at.17", i32 4, <4 x i1> %"mask", <4 x float> <float 0.0, float 0.0, float 0.0, float 0.0>)
  %"fma.8" = call <4 x float> @"llvm.fma.v4f32"(<4 x float> %"splat.12", <4 x float> %"load.9", <4 x float> %"read.17")
  call void @"llvm.masked.store.v4f32.p0"(<4 x float> %"fma.8", ptr %"at.17", i32 4, <4 x i1> %"mask")
  br label %"end.3"
}

declare void @"llvm.prefetch.p0"(ptr %".1", i32 %".2", i32 %".3", i32 %".4")

declare <4 x float> @"llvm.fma.v4f32"(<4 x float> %".1", <4 x float> %".2", <4 x float> %".3")

declare void @"llvm.masked.store.v4f32.p0"(<4 x float> %".1", ptr %".2", i32 %".3", <4 x i1> %".4")

declare <4 x float> @"llvm.masked.load.v4f32.p0"(ptr %".1", i32 %".2", <4 x i1> %".3", <4 x float> %".4")
