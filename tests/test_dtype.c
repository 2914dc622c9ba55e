/* test_dtype.c - weight types: halves over all 65,536 values, blocks against vectors.
 *
 * The vectors are one block of random bytes per type with a small scale; the floats are what the
 * Python package `gguf` makes of them.  They are compared bit by bit. */
#include "kernels/dtype.h"

#include "test.h"

/* clang-format off */
static const char q4_0_hex[] =
    "4ca26ae4eb0eb3479ecafa42f5b50d767132";
static const float q4_0_floats[32] = {
    -0.024597168f, 0.0491943359f, -0.036895752f, -0.0737915039f, 0.0614929199f, 0.012298584f,
    -0.0737915039f, -0.024597168f, -0.024597168f, 0.0737915039f, 0.036895752f, 0.036895752f,
    -0.0614929199f, 0.024597168f, 0.0860900879f, 0.0737915039f, 0.024597168f, -0.0737915039f,
    -0.0737915039f, 0.0983886719f, -0.036895752f, 0.0491943359f, -0.012298584f, -0.0491943359f,
    -0.0860900879f, 0.0491943359f, -0.0860900879f, -0.036895752f, 0.0983886719f, 0.012298584f,
    0.012298584f, 0.0614929199f,
};
static const char q4_1_hex[] =
    "c02856b49fdad03f33a9c9857d80d73dc642bf68";
static const float q4_1_floats[32] = {
    0.285644531f, 0.100097656f, -0.270996094f, 0.285644531f, -0.159667969f, 0.0629882812f,
    0.0629882812f, -0.0854492188f, 0.211425781f, -0.270996094f, -0.0112304688f, 0.211425781f,
    -0.0483398438f, -0.196777344f, 0.285644531f, 0.0258789062f, 0.0629882812f, 0.211425781f,
    0.211425781f, -0.159667969f, -0.159667969f, 0.100097656f, 0.174316406f, 0.0258789062f,
    -0.0112304688f, 0.0258789062f, 0.211425781f, -0.159667969f, 0.174316406f, -0.122558594f,
    0.137207031f, -0.0483398438f,
};
static const char q5_0_hex[] =
    "4d1f235828f856124849d0084ce1551935199ba9eb64";
static const float q5_0_floats[32] = {
    0.0427780151f, 0.0142593384f, -0.0570373535f, -0.0499076843f, -0.114074707f, 0.0570373535f,
    -0.0285186768f, -0.106945038f, -0.0784263611f, -0.0499076843f, -0.0784263611f, 0.0641670227f,
    0.0784263611f, -0.0499076843f, 0.0784263611f, -0.0855560303f, -0.0784263611f, -0.106945038f,
    -0.0855560303f, 0.0285186768f, -0.0213890076f, 0.0f, -0.0855560303f, -0.0142593384f,
    -0.0784263611f, -0.106945038f, -0.0926856995f, 0.00712966919f, 0.0641670227f, 0.0712966919f,
    0.0998153687f, 0.0427780151f,
};
static const char q5_1_hex[] =
    "e424cdb4c76eaeb1867435ec363fdd72075bf98c98a0e2a3";
static const float q5_1_floats[32] = {
    0.120239258f, 0.08203125f, 0.101135254f, -0.0708007812f, -0.185424805f, -0.0134887695f,
    0.253967285f, 0.0438232422f, -0.166320801f, 0.215759277f, 0.17755127f, 0.234863281f,
    -0.147216797f, 0.00561523438f, 0.0438232422f, -0.242736816f, -0.147216797f, 0.139343262f,
    0.0629272461f, 0.273071289f, -0.242736816f, 0.0629272461f, -0.0516967773f, 0.139343262f,
    0.00561523438f, -0.204528809f, -0.0134887695f, -0.147216797f, 0.17755127f, 0.196655273f,
    -0.0325927734f, 0.196655273f,
};
static const char q8_0_hex[] =
    "bb988d67f8c13e45812d89b3bf9c474dac93288eb58bc612f5536c367c3f760da91b";
static const float q8_0_floats[32] = {
    0.265626907f, -0.237909317f, 0.0184783936f, 0.145517349f, -0.14320755f, -0.159376144f,
    0.293344498f, -0.103940964f, 0.274866104f, 0.177854538f, 0.150136948f, 0.230979919f,
    -0.163995743f, -0.177854538f, 0.194023132f, 0.251768112f, -0.0923919678f, 0.263317108f,
    0.17323494f, 0.270246506f, 0.133968353f, -0.0415763855f, 0.0254077911f, -0.191713333f,
    -0.249458313f, -0.124729156f, -0.2864151f, -0.145517349f, -0.272556305f, -0.0300273895f,
    0.20095253f, -0.0623645782f,
};
static const char q4_k_hex[] =
    "9e13331c4c4605e14ac734d00712edebd0d1450116a9cec4cc817e54033fc4a56f65ce16b42b5138595ecb77"
    "5ea8ca447de5209ef8fdfee7607c118d0d463feffde05122feea4471324bd3b3f4efa0262090eb9cb243b968"
    "3030a977b47bfa873686104c03fea2b390dc1bebeac9fd22d64d5c15791fd242b6340f25333917664a03ea60"
    "daa4f73b6e7e5c42ea0d1f4d";
static const float q4_k_floats[256] = {
    -0.0410079956f, -0.0298500061f, 0.0147819519f, -0.0298500061f, 0.0259399414f, 0.0594139099f,
    0.115203857f, 0.0036239624f, 0.0928878784f, -0.0298500061f, 0.115203857f, 0.0036239624f,
    -0.0075340271f, 0.126361847f, 0.0036239624f, 0.0147819519f, 0.126361847f, 0.0147819519f,
    0.115203857f, 0.0259399414f, 0.0036239624f, 0.0817298889f, -0.0298500061f, 0.0482559204f,
    0.0594139099f, 0.115203857f, 0.0817298889f, 0.0370979309f, 0.115203857f, 0.0482559204f,
    0.0705718994f, 0.0036239624f, 0.0438213348f, 0.0438213348f, -0.00638961792f, -0.0287055969f,
    -0.0231266022f, 0.0270843506f, 0.0382423401f, 0.0382423401f, 0.0382423401f, 0.0159263611f,
    0.0103473663f, -0.000810623169f, -0.0287055969f, -0.0119686127f, 0.0382423401f, 0.0270843506f,
    0.00476837158f, 0.00476837158f, 0.0382423401f, -0.0231266022f, 0.0326633453f, -0.0175476074f,
    -0.000810623169f, -0.0119686127f, -0.000810623169f, -0.000810623169f, 0.0382423401f,
    0.0103473663f, -0.000810623169f, 0.0270843506f, 0.0382423401f, -0.00638961792f, -0.152802467f,
    -0.189995766f, -0.213241577f, -0.148153305f, -0.176048279f, -0.152802467f, -0.148153305f,
    -0.180697441f, -0.213241577f, -0.15745163f, -0.208592415f, -0.152802467f, -0.152802467f,
    -0.185346603f, -0.143504143f, -0.143504143f, -0.152802467f, -0.213241577f, -0.208592415f,
    -0.203943253f, -0.148153305f, -0.166749954f, -0.194644928f, -0.208592415f, -0.203943253f,
    -0.162100792f, -0.19929409f, -0.19929409f, -0.194644928f, -0.143504143f, -0.213241577f,
    -0.185346603f, 0.149178505f, 0.363969803f, -0.00424385071f, 0.210547447f, 0.394654274f,
    0.394654274f, 0.394654274f, 0.363969803f, 0.118494034f, 0.149178505f, -0.0349283218f,
    0.179862976f, -0.065612793f, 0.0571250916f, 0.0264406204f, 0.363969803f, 0.394654274f,
    0.363969803f, 0.0878095627f, -0.00424385071f, 0.394654274f, 0.363969803f, 0.0571250916f,
    0.149178505f, 0.0264406204f, 0.0571250916f, 0.333285332f, 0.271916389f, 0.394654274f,
    0.363969803f, 0.241231918f, -0.00424385071f, -0.065612793f, -0.065612793f, 0.169634819f,
    0.191020966f, -0.0228404999f, -0.00145435333f, 0.126862526f, 0.105476379f, -0.065612793f,
    -0.065612793f, 0.126862526f, 0.0840902328f, 0.0199317932f, 0.169634819f, 0.148248672f,
    0.0840902328f, 0.0627040863f, 0.0627040863f, -0.065612793f, 0.191020966f, -0.00145435333f,
    0.233793259f, -0.0228404999f, -0.00145435333f, -0.065612793f, 0.191020966f, 0.169634819f,
    0.169634819f, 0.148248672f, 0.126862526f, 0.212407112f, -0.0228404999f, -0.16746521f,
    -0.0503063202f, 0.0333786011f, -0.0503063202f, -0.0168323517f, -0.133991241f, -0.0168323517f,
    -0.100517273f, -0.150728226f, -0.150728226f, -0.0335693359f, -0.0837802887f, -0.0168323517f,
    -0.0837802887f, 0.0501155853f, -0.0670433044f, -0.150728226f, -0.0670433044f, -0.184202194f,
    -0.133991241f, -0.200939178f, 0.0501155853f, -0.0335693359f, -0.0168323517f, -0.0503063202f,
    0.0166416168f, -0.184202194f, 0.0333786011f, 0.0333786011f, -9.53674316e-05f, 0.0501155853f,
    -0.16746521f, 0.0151157379f, 0.0997304916f, 0.0876426697f, 0.00302791595f, 0.0513792038f,
    0.123906136f, -0.0332355499f, -0.0332355499f, 0.0151157379f, -0.00905990601f, 0.123906136f,
    0.00302791595f, -0.021147728f, 0.0513792038f, 0.0272035599f, 0.0151157379f, 0.0634670258f,
    -0.021147728f, 0.0634670258f, -0.0574111938f, 0.0634670258f, -0.00905990601f, 0.0272035599f,
    0.0755548477f, 0.111818314f, 0.111818314f, 0.0876426697f, -0.0332355499f, 0.0634670258f,
    0.0997304916f, 0.123906136f, 0.0997304916f, 0.458931923f, -0.0348091125f, 0.0200510025f,
    -0.199389458f, 0.129771233f, -0.199389458f, 0.458931923f, -0.0348091125f, 0.349211693f,
    -0.0896692276f, -0.254249573f, -0.144529343f, -0.0896692276f, -0.0896692276f, -0.199389458f,
    0.0749111176f, -0.0348091125f, -0.254249573f, 0.513792038f, 0.0749111176f, 0.458931923f,
    0.294351578f, 0.568652153f, -0.0896692276f, 0.0749111176f, 0.129771233f, 0.0200510025f,
    -0.0348091125f, 0.513792038f, -0.254249573f, -0.199389458f, -0.0348091125f,
};
static const char q5_k_hex[] =
    "b30fe31f491e23d5ff50ceb1e826701acd6a32b4d8c65ca9a4651dc6a5fbb0362f49dc2c10b7e602186e0ebf"
    "f1d9bb645e0ffd3e912676aac5743789b8704c80d43d9e385e7aa12335adeacffe87e455dff89e1b2ed756e6"
    "7e634b6e77f10c7770603ba221e7aa77ee528ab2651acfe31e1b6a18bdf9d4587144effbd509eae44552384a"
    "39347d455e814672d9c2adc6ceeccc4d0a52d2047ed1360a4140713246ba993e22ae0dfa9d5bb653a0c920ed";
static const float q5_k_floats[256] = {
    -0.358338833f, -0.42177844f, -0.430237055f, -0.426007748f, -0.480988741f, -0.459842205f,
    -0.459842205f, -0.375256062f, -0.464071512f, -0.400631905f, -0.387943983f, -0.447154284f,
    -0.383714676f, -0.417549133f, -0.434466362f, -0.485218048f, -0.400631905f, -0.36256814f,
    -0.426007748f, -0.451383591f, -0.426007748f, -0.375256062f, -0.480988741f, -0.472530127f,
    -0.464071512f, -0.430237055f, -0.442924976f, -0.354109526f, -0.358338833f, -0.387943983f,
    -0.400631905f, -0.464071512f, -0.0527415276f, 0.102333069f, 0.313798428f, -0.0809369087f,
    0.00364923477f, 0.13052845f, -0.0245461464f, 0.0177469254f, 0.0459423065f, -0.0245461464f,
    -0.0809369087f, 0.215114594f, 0.0318446159f, 0.201016903f, -0.0668392181f, 0.215114594f,
    0.285603046f, -0.0809369087f, 0.00364923477f, -0.0809369087f, -0.0527415276f, 0.201016903f,
    0.243309975f, 0.13052845f, -0.0809369087f, 0.243309975f, 0.299700737f, 0.271505356f,
    0.0882353783f, -0.0104484558f, 0.299700737f, -0.0527415276f, 0.402040243f, 0.0237522125f,
    0.122436047f, 0.33625102f, 0.122436047f, 0.270461798f, 0.254014492f, -0.00914239883f,
    0.385592937f, 0.204672575f, 0.33625102f, 0.385592937f, 0.270461798f, -0.0913789272f,
    0.0895414352f, 0.270461798f, 0.155330658f, -0.107826233f, 0.33625102f, 0.188225269f,
    -0.0913789272f, 0.270461798f, 0.319803715f, 0.00730490685f, 0.122436047f, 0.188225269f,
    0.319803715f, 0.188225269f, -0.0255897045f, 0.0566468239f, 0.138883352f, 0.204672575f,
    -0.0912086964f, -0.0714719296f, -0.288576365f, -0.367523432f, -0.199760914f, -0.249102831f,
    -0.170155764f, -0.081340313f, -0.308313131f, -0.318181515f, -0.180024147f, -0.318181515f,
    -0.308313131f, -0.0714719296f, -0.377391815f, -0.308313131f, -0.150418997f, -0.16028738f,
    -0.18989253f, -0.120813847f, -0.357655048f, -0.239234447f, -0.278707981f, -0.308313131f,
    -0.081340313f, -0.170155764f, -0.140550613f, -0.110945463f, -0.318181515f, -0.209629297f,
    -0.10107708f, -0.239234447f, -0.31962204f, -0.353456497f, -0.18428421f, -0.206840515f,
    -0.150449753f, -0.376012802f, -0.251953125f, -0.387290955f, -0.466238022f, -0.432403564f,
    -0.127893448f, -0.353456497f, -0.421125412f, -0.195562363f, -0.18428421f, -0.251953125f,
    -0.421125412f, -0.454959869f, -0.206840515f, -0.36473465f, -0.195562363f, -0.251953125f,
    -0.330900192f, -0.421125412f, -0.1391716f, -0.466238022f, -0.40984726f, -0.27450943f,
    -0.195562363f, -0.27450943f, -0.150449753f, -0.40984726f, -0.13581419f, -0.09070158f,
    -0.0766038895f, -0.09070158f, -0.107618809f, -0.0963406563f, -0.101979733f, -0.0794234276f,
    -0.0737843513f, -0.0822429657f, -0.0991601944f, -0.0963406563f, -0.0568671227f, -0.0935211182f,
    -0.0540475845f, -0.0540475845f, -0.0822429657f, -0.124536037f, -0.130175114f, -0.0822429657f,
    -0.130175114f, -0.0850625038f, -0.0737843513f, -0.127355576f, -0.124536037f, -0.0709648132f,
    -0.127355576f, -0.0737843513f, -0.0568671227f, -0.104799271f, -0.065325737f, -0.0596866608f,
    -0.423603058f, -0.423603058f, -0.423603058f, -0.423603058f, -0.423603058f, -0.423603058f,
    -0.423603058f, -0.423603058f, -0.423603058f, -0.423603058f, -0.423603058f, -0.423603058f,
    -0.423603058f, -0.423603058f, -0.423603058f, -0.423603058f, -0.423603058f, -0.423603058f,
    -0.423603058f, -0.423603058f, -0.423603058f, -0.423603058f, -0.423603058f, -0.423603058f,
    -0.423603058f, -0.423603058f, -0.423603058f, -0.423603058f, -0.423603058f, -0.423603058f,
    -0.423603058f, -0.423603058f, 0.508993149f, 0.127415657f, 0.0729045868f, 0.290948868f,
    0.181926727f, 0.318204403f, 0.100160122f, 0.181926727f, 0.372715473f, 0.100160122f,
    -0.172395229f, 0.181926727f, 0.290948868f, 0.290948868f, 0.372715473f, -0.172395229f,
    -0.145139694f, 0.0456490517f, 0.427226543f, -0.172395229f, -0.199650764f, 0.454482079f,
    0.181926727f, 0.154671192f, -0.00886201859f, -0.117884159f, 0.0456490517f, 0.318204403f,
    0.454482079f, 0.508993149f, 0.236437798f, 0.127415657f,
};
static const char q6_k_hex[] =
    "ee633e93dbdce70a09ffce11453d81ca367448eef2597545c112e632ad48c88fea268787cbd6ff6fba09335b"
    "4098472ff097005cfed4cf8183a740e99450799b22f4a4e3f3214bfd265c439cf5ce9584ecc79d4712b2e4bb"
    "0ad2a027ff771a60c0f62077a8090a72d411722b2897cb85196b3e7faf1a8c8b444814122a80636d83e74b04"
    "4c18793f14ff10889d6e4da5a14577646785a16152d812ffbabb36bf17f9e05fec81bfe4ae125988085423f6"
    "b3bec0638203bac010a30fc615bd0683f29da660f7abb013ca76d0411a5379df9289";
static const float q6_k_floats[256] = {
    0.0713968277f, 0.0452179909f, 0.0713968277f, -0.0690169334f, -0.0499777794f, -0.0475978851f,
    -0.0214190483f, 0.0618772507f, -0.0547375679f, 0.073776722f, -0.0428380966f, -0.073776722f,
    -0.0261788368f, 0.0309386253f, -0.0356984138f, -0.0142793655f, -0.168292522f, -0.201951027f,
    0.403902054f, -0.30292654f, 0.30292654f, -0.117804766f, -0.185121775f, -0.185121775f,
    0.0168292522f, -0.504877567f, 0.100975513f, 0.30292654f, 0.218780279f, 0.403902054f,
    0.134634018f, 0.52170682f, -0.336585045f, -0.152993202f, 0.107095242f, -0.137693882f,
    0.413081646f, 0.0917959213f, 0.229489803f, 0.474278927f, -0.0917959213f, 0.382483006f,
    -0.443680286f, 0.168292522f, 0.244789124f, 0.367183685f, 0.351884365f, -0.0152993202f,
    0.522216797f, 0.146873474f, 0.261108398f, 0.0652770996f, 0.0326385498f, 0.195831299f,
    0.277427673f, 0.505897522f, 0.473258972f, -0.114234924f, 0.522216797f, -0.407981873f,
    -0.0652770996f, -0.0f, 0.114234924f, -0.440620422f, -0.0275387764f, 0.00917959213f,
    -0.0443680286f, -0.0351884365f, -0.0290687084f, -0.00458979607f, 0.0458979607f, 0.0244789124f,
    -0.0244789124f, 0.0474278927f, -0.00611972809f, -0.0474278927f, -0.0183591843f, 0.00458979607f,
    -0.0367183685f, 0.0183591843f, 0.043348074f, -0.36123395f, 0.28898716f, 0.202291012f,
    0.21674037f, -0.390132666f, 0.101145506f, 0.0577974319f, -0.0577974319f, -0.21674037f,
    -0.028898716f, 0.274537802f, 0.375683308f, 0.28898716f, 0.404582024f, 0.346784592f,
    0.190391541f, 0.244789124f, -0.108795166f, -0.326385498f, -0.054397583f, -0.258388519f,
    -0.0135993958f, -0.35358429f, -0.285587311f, 0.217590332f, -0.394382477f, 0.0679969788f,
    0.054397583f, -0.0951957703f, -0.163192749f, 0.0271987915f, -0.0484478474f, 0.0226089954f,
    0.0516777039f, 0.0355284214f, 0.00322985649f, -0.0419881344f, -0.0387582779f, 0.0258388519f,
    0.0258388519f, -0.0839762688f, 0.0904359818f, -0.0968956947f, -0.0290687084f, -0.0161492825f,
    0.0807464123f, -0.0290687084f, 0.165232658f, -0.110155106f, -0.25702858f, 0.174412251f,
    -0.266208172f, -0.137693882f, 0.247848988f, -0.174412251f, 0.0550775528f, 0.110155106f,
    -0.119334698f, -0.183591843f, -0.247848988f, -0.165232658f, 0.192771435f, 0.0367183685f,
    -0.561655045f, -0.140413761f, 0.381123066f, -0.461359501f, -0.0401182175f, -0.361063957f,
    -0.0802364349f, 0.421241283f, 0.441300392f, -0.361063957f, -0.32094574f, -0.140413761f,
    0.0200591087f, 0.180531979f, -0.200591087f, -0.32094574f, -0.130554199f, 0.0489578247f,
    -0.261108398f, 0.187671661f, 0.195831299f, -0.187671661f, 0.212150574f, -0.114234924f,
    0.163192749f, -0.252948761f, 0.0163192749f, 0.089756012f, 0.0652770996f, -0.0734367371f,
    -0.171352386f, -0.089756012f, 0.254138708f, -0.298336744f, 0.198891163f, 0.187841654f,
    0.187841654f, 0.243089199f, -0.132594109f, 0.23203969f, 0.309386253f, 0.265188217f,
    -0.220990181f, 0.154693127f, 0.0662970543f, -0.176792145f, 0.143643618f, 0.209940672f,
    0.0618772507f, -0.137013912f, -0.0441980362f, 0.00883960724f, -0.0662970543f, 0.132594109f,
    -0.0883960724f, -0.0662970543f, -0.00883960724f, 0.0486178398f, 0.0530376434f, 0.101655483f,
    0.0751366615f, 0.0176792145f, -0.0397782326f, -0.106075287f, -0.423281193f, -0.395062447f,
    0.324515581f, -0.0564374924f, 0.437390566f, 0.296296835f, -0.423281193f, 0.296296835f,
    0.225749969f, -0.18342185f, 0.310406208f, 0.423281193f, 0.0141093731f, -0.324515581f,
    0.437390566f, 0.3668437f, 0.411381721f, -0.637641668f, -0.370243549f, 0.185121775f,
    -0.534796238f, -0.0f, -0.0f, -0.47308898f, -0.267398119f, 0.637641668f, 0.185121775f,
    -0.0411381721f, 0.617072582f, 0.143983603f, 0.411381721f, -0.493658066f, 0.00560975075f,
    0.0336585045f, 0.106585264f, -0.0504877567f, 0.0560975075f, -0.173902273f, 0.044878006f,
    0.134634018f, -0.157073021f, 0.022439003f, -0.173902273f, 0.0953657627f, -0.168292522f,
    0.044878006f, -0.145853519f, 0.0336585045f,
};
/* clang-format on */

static uint32_t bits_of(float f) {
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

/* ---- what exists ---- */

static void types_have_the_sizes_of_the_format(void) {
    static const struct {
        uint32_t id, elems, bytes;
        const char *name;
        bool supported;
    } rows[] = {
        {0, 1, 4, "F32", true},          {1, 1, 2, "F16", true},
        {2, 32, 18, "Q4_0", true},       {3, 32, 20, "Q4_1", true},
        {6, 32, 22, "Q5_0", true},       {7, 32, 24, "Q5_1", true},
        {8, 32, 34, "Q8_0", true},       {9, 32, 36, "Q8_1", false},
        {10, 256, 84, "Q2_K", false},    {11, 256, 110, "Q3_K", false},
        {12, 256, 144, "Q4_K", true},    {13, 256, 176, "Q5_K", true},
        {14, 256, 210, "Q6_K", true},    {15, 256, 292, "Q8_K", false},
        {16, 256, 66, "IQ2_XXS", false}, {17, 256, 74, "IQ2_XS", false},
        {18, 256, 98, "IQ3_XXS", false}, {19, 256, 50, "IQ1_S", false},
        {20, 32, 18, "IQ4_NL", false},   {21, 256, 110, "IQ3_S", false},
        {22, 256, 82, "IQ2_S", false},   {23, 256, 136, "IQ4_XS", false},
        {24, 1, 1, "I8", false},         {25, 1, 2, "I16", false},
        {26, 1, 4, "I32", false},        {27, 1, 8, "I64", false},
        {28, 1, 8, "F64", false},        {29, 256, 56, "IQ1_M", false},
        {30, 1, 2, "BF16", true},        {34, 256, 54, "TQ1_0", false},
        {35, 256, 66, "TQ2_0", false},   {39, 32, 17, "MXFP4", false},
        {40, 64, 36, "NVFP4", false},    {41, 128, 18, "Q1_0", false},
        {42, 64, 18, "Q2_0", false},
    };
    for (size_t i = 0; i < INFERD_COUNT(rows); i++) {
        dtype_info about = dtype_about(rows[i].id);
        EXPECT_STR(about.name != NULL ? about.name : "nothing", rows[i].name);
        EXPECT_EQ(about.block_elems, rows[i].elems);
        EXPECT_EQ(about.block_bytes, rows[i].bytes);
        EXPECT_EQ(about.supported, rows[i].supported);
    }
}

static void removed_types_have_a_name_and_no_bytes(void) {
    static const uint32_t removed[] = {4, 5, 31, 32, 33, 36, 37, 38};
    for (size_t i = 0; i < INFERD_COUNT(removed); i++) {
        dtype_info about = dtype_about(removed[i]);
        EXPECT(about.name != NULL);
        EXPECT_EQ(about.block_bytes, 0);
        EXPECT(!about.supported);
    }
}

static void other_ids_are_no_types(void) {
    for (uint32_t id = 43; id < 300; id++) EXPECT(dtype_about(id).name == NULL);
    EXPECT(dtype_about(UINT32_MAX).name == NULL);
    EXPECT(dtype_about(UINT32_MAX).block_bytes == 0);
}

/* ---- halves ---- */

/* A half by its definition: sign, five bits of exponent, ten of mantissa. */
static double half_value(uint16_t h) {
    int exponent = h >> 10 & 31, mantissa = h & 0x3ff;
    double v = exponent == 0 ? ldexp(mantissa, -24) : ldexp(1024 + mantissa, exponent - 25);
    return h >> 15 ? -v : v;
}

static bool half_is_finite(uint16_t h) {
    return (h & 0x7c00) != 0x7c00;
}

static void every_half_is_its_value(void) {
    for (uint32_t h = 0; h < 65536; h++) {
        float f = f16_to_f32((uint16_t)h);
        if (half_is_finite((uint16_t)h)) {
            EXPECT(bits_of(f) == bits_of((float)half_value((uint16_t)h)));
        } else if ((h & 0x3ff) == 0) {
            EXPECT(isinf(f) && (signbit(f) != 0) == (h >> 15 != 0));
        } else {
            EXPECT(isnan(f) && (signbit(f) != 0) == (h >> 15 != 0));
        }
    }
}

/* Every half, alone and among others, at each place of what is looked at at once and behind it. */
static void numbers_that_are_none_are_seen(void) {
    enum { N = 41 };
    uint16_t halves[N];
    uint32_t words[N];
    for (uint32_t h = 0; h < 65536; h++) {
        uint32_t at = h % N;
        memset(halves, 0x3b, sizeof halves);
        halves[at] = (uint16_t)h;
        EXPECT_EQ(dtype_are_finite(DTYPE_F16, halves, N), half_is_finite((uint16_t)h));
        EXPECT_EQ(dtype_are_finite(DTYPE_BF16, halves, N), (h & 0x7f80) != 0x7f80);
        memset(words, 0xc7, sizeof words);
        words[at] = h << 16 | (h * 40503u & 0xffff);
        EXPECT_EQ(dtype_are_finite(DTYPE_F32, words, N), (h & 0x7f80) != 0x7f80);
    }
    for (size_t n = 0; n < N; n++) { // what lies behind is not looked at
        memset(halves, 0xff, sizeof halves);
        memset(halves, 0, n * sizeof *halves);
        EXPECT(dtype_are_finite(DTYPE_F16, halves, n) && dtype_are_finite(DTYPE_BF16, halves, n));
        EXPECT(!dtype_are_finite(DTYPE_F16, halves, n + 1));
        EXPECT(!dtype_are_finite(DTYPE_BF16, halves, n + 1));
    }
}

static void every_half_comes_back(void) {
    for (uint32_t h = 0; h < 65536; h++) {
        uint16_t back = f32_to_f16(f16_to_f32((uint16_t)h));
        if (half_is_finite((uint16_t)h) || (h & 0x3ff) == 0)
            EXPECT_EQ(back, h);
        else
            EXPECT_EQ(back, h | 0x200); // not a number stays one, quiet
    }
}

/* Between two neighbours everything below the middle goes down, everything above goes up, and the
 * middle goes to the one whose last bit is zero. */
static void floats_round_to_the_nearest_half(void) {
    for (uint16_t h = 0; h < 0x7bff; h++) {
        float low = (float)half_value(h), high = (float)half_value((uint16_t)(h + 1));
        float middle = (low + high) / 2; // exact
        uint16_t even = (uint16_t)(h + (h & 1));
        EXPECT_EQ(f32_to_f16(middle), even);
        EXPECT_EQ(f32_to_f16(nextafterf(middle, 0)), h);
        EXPECT_EQ(f32_to_f16(nextafterf(middle, INFINITY)), h + 1);
        EXPECT_EQ(f32_to_f16(-middle), even | 0x8000);
    }
}

static void floats_beyond_the_halves_are_infinite_or_zero(void) {
    EXPECT_EQ(f32_to_f16(65504.0f), 0x7bff);
    EXPECT_EQ(f32_to_f16(nextafterf(65520.0f, 0)), 0x7bff);
    EXPECT_EQ(f32_to_f16(65520.0f), 0x7c00);
    EXPECT_EQ(f32_to_f16(1e38f), 0x7c00);
    EXPECT_EQ(f32_to_f16(-INFINITY), 0xfc00);
    EXPECT_EQ(f32_to_f16(0x1p-25f), 0); // half of the smallest: to even
    EXPECT_EQ(f32_to_f16(nextafterf(0x1p-25f, 1)), 1);
    EXPECT_EQ(f32_to_f16(1e-45f), 0);
    EXPECT_EQ(f32_to_f16(-0.0f), 0x8000);
    EXPECT_EQ(f32_to_f16(NAN) & 0x7e00, 0x7e00);
}

static void every_bf16_is_the_upper_half_of_a_float(void) {
    for (uint32_t h = 0; h < 65536; h++) {
        float f = bf16_to_f32((uint16_t)h);
        EXPECT_EQ(bits_of(f), h << 16);
        if (!isnan(f))
            EXPECT_EQ(f32_to_bf16(f), h);
        else
            EXPECT_EQ(f32_to_bf16(f), h | 0x40);
    }
}

static void floats_round_to_the_nearest_bf16(void) {
    for (uint32_t h = 0; h < 0x7f80; h++) { // the last step is to infinity
        uint32_t even = h + (h & 1);
        EXPECT_EQ(f32_to_bf16(bf16_to_f32((uint16_t)h) + 0.0f), h);
        float middle, below, above;
        uint32_t u = h << 16 | 0x8000;
        memcpy(&middle, &u, sizeof middle);
        u--;
        memcpy(&below, &u, sizeof below);
        u += 2;
        memcpy(&above, &u, sizeof above);
        EXPECT_EQ(f32_to_bf16(middle), even);
        EXPECT_EQ(f32_to_bf16(below), h);
        EXPECT_EQ(f32_to_bf16(above), h + 1);
        EXPECT_EQ(f32_to_bf16(-middle), even | 0x8000);
    }
    float nearly = NAN; // all its payload in the lower half: cutting would make it infinite
    uint32_t u = 0x7f800001;
    memcpy(&nearly, &u, sizeof nearly);
    EXPECT(isnan(bf16_to_f32(f32_to_bf16(nearly))));
}

/* ---- blocks ---- */

static size_t from_hex(const char *hex, unsigned char *out) {
    size_t n = strlen(hex) / 2;
    for (size_t i = 0; i < n; i++) {
        unsigned v;
        sscanf(hex + 2 * i, "%2x", &v);
        out[i] = (unsigned char)v;
    }
    return n;
}

/* Two of the block, at an odd address: blocks lie anywhere in a row. */
static void expect_block(dtype type, const char *hex, const float *expected, size_t n) {
    unsigned char block[1 + 2 * 256];
    float out[2 * 256];
    size_t n_bytes = from_hex(hex, block + 1);
    EXPECT_EQ(n_bytes, dtype_about(type).block_bytes);
    EXPECT_EQ(n, dtype_about(type).block_elems);
    memcpy(block + 1 + n_bytes, block + 1, n_bytes);
    dtype_to_f32(type, block + 1, out, 2 * n);
    for (size_t i = 0; i < 2 * n; i++) {
        if (bits_of(out[i]) == bits_of(expected[i % n])) continue;
        printf("%s: element %zu is %.9g, expected %.9g\n", dtype_about(type).name, i,
               (double)out[i], (double)expected[i % n]);
        test_failures++;
    }
}

static void blocks_of_32_are_what_gguf_says(void) {
    expect_block(DTYPE_Q4_0, q4_0_hex, q4_0_floats, INFERD_COUNT(q4_0_floats));
    expect_block(DTYPE_Q4_1, q4_1_hex, q4_1_floats, INFERD_COUNT(q4_1_floats));
    expect_block(DTYPE_Q5_0, q5_0_hex, q5_0_floats, INFERD_COUNT(q5_0_floats));
    expect_block(DTYPE_Q5_1, q5_1_hex, q5_1_floats, INFERD_COUNT(q5_1_floats));
    expect_block(DTYPE_Q8_0, q8_0_hex, q8_0_floats, INFERD_COUNT(q8_0_floats));
}

static void blocks_of_256_are_what_gguf_says(void) {
    expect_block(DTYPE_Q4_K, q4_k_hex, q4_k_floats, INFERD_COUNT(q4_k_floats));
    expect_block(DTYPE_Q5_K, q5_k_hex, q5_k_floats, INFERD_COUNT(q5_k_floats));
    expect_block(DTYPE_Q6_K, q6_k_hex, q6_k_floats, INFERD_COUNT(q6_k_floats));
}

static void plain_numbers_are_little_endian_and_unaligned(void) {
    static const unsigned char raw[] = {0xee, 0x00, 0x00, 0xc0, 0x3f, 0x00, 0x00, 0x10, 0xc1};
    float out[4];
    dtype_to_f32(DTYPE_F32, raw + 1, out, 2);
    EXPECT(out[0] == 1.5f && out[1] == -9.0f);
    dtype_to_f32(DTYPE_BF16, raw + 1, out, 4);
    EXPECT(out[0] == 0 && out[1] == 1.5f && out[2] == 0 && out[3] == -9.0f);
    dtype_to_f32(DTYPE_F16, raw + 1, out, 4);
    EXPECT(out[0] == 0 && out[1] == 1.9375f && out[2] == 0 && out[3] == -2.53125f);
}

static void nothing_is_converted_to_nothing(void) {
    float out = 7;
    dtype_to_f32(DTYPE_Q6_K, "", &out, 0);
    EXPECT(out == 7);
}

static const test_case cases[] = {
    TEST(types_have_the_sizes_of_the_format),
    TEST(removed_types_have_a_name_and_no_bytes),
    TEST(other_ids_are_no_types),
    TEST(every_half_is_its_value),
    TEST(numbers_that_are_none_are_seen),
    TEST(every_half_comes_back),
    TEST(floats_round_to_the_nearest_half),
    TEST(floats_beyond_the_halves_are_infinite_or_zero),
    TEST(every_bf16_is_the_upper_half_of_a_float),
    TEST(floats_round_to_the_nearest_bf16),
    TEST(blocks_of_32_are_what_gguf_says),
    TEST(blocks_of_256_are_what_gguf_says),
    TEST(plain_numbers_are_little_endian_and_unaligned),
    TEST(nothing_is_converted_to_nothing),
};
TEST_MAIN(cases)
